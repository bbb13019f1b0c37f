"""auto: in a batch at half the price, or by a direct call that is there at once?

A wave goes out in a batch unless it is the tail of the run (few conversations are left, and all would wait for
them), or what the batch saves is worth less than the wait for it. Where the budget holds a batch and not the calls,
it is a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.llm.providers.dispatch.batches import likely_tokens
from r2v.llm.providers.dispatch.dispatch_policy import Plan
from r2v.llm.providers.prices import Tokens
from r2v.llm.providers.provider_requests import Ask
from r2v.llm.providers.spending.budget import Till
from r2v.log import logger

_USUAL_OUTPUT = 200


class Chooser:
    """Decides for each wave, and says so whenever the decision changes."""

    def __init__(self, plan: Plan, till: Till) -> None:
        self._plan, self._till = plan, till
        self._most = 0
        self._said: bool | None = None
        self.no_batches = False
        """The provider takes none."""

    def batched(self, asks: Sequence[Ask], open_now: int, wait: float) -> bool:
        """Whether these go out in a batch, `open_now` questions being under way with them and a batch taking about
        `wait` seconds."""
        if self._plan.mode != "auto":
            return self._plan.mode == "batch"
        if self.no_batches:
            return False
        self._most = max(self._most, open_now)
        saved, cost = self.saved(asks), wait / 3600 * self._plan.hour_usd
        direct, batch = (sum(self._till.worst(ask, batch=way) for ask in asks) for way in (False, True))
        if direct > self._till.purse.room >= batch:
            return self._say(True, "the budget holds no direct calls")
        if open_now <= self._plan.tail * self._most:
            return self._say(False, f"the last {open_now} of {self._most} conversations")
        if saved < cost:
            return self._say(
                False,
                f"a batch of {len(asks)} saves ${saved:.4f}, its wait of about {wait / 60:.0f} min costs ${cost:.4f}",
            )
        return self._say(True, f"{len(asks)} questions, a batch saves about ${saved:.2f}")

    def saved(self, asks: Sequence[Ask]) -> float:
        """USD that a batch of these is likely to save."""
        rate = self._till.rate
        whole = sum(
            rate.usd(Tokens(fresh=likely_tokens(ask), output=min(_USUAL_OUTPUT, ask.max_tokens)), batch=False)
            for ask in asks
        )
        return whole * (1.0 - rate.batch)

    def _say(self, batched: bool, why: str) -> bool:
        if batched != self._said:
            logger.info("  auto: %s (%s)", "in batches" if batched else "direct calls", why)
        self._said = batched
        return batched
