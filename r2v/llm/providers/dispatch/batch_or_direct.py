"""The choice between a batch at a discount and direct calls that are answered at once (mode auto).

A wave goes into a batch unless it is the tail of the run (few conversations are left, and all of them would wait for
it), or unless batches for all that is open save less than the wait for them costs. Where the budget covers a batch but
not the calls, it goes into a batch.

What a batch saves is counted against what direct calls would really be billed: from its third turn on, a conversation
whose turns follow within minutes reads what was said before from the provider's cache, which a batch hours later does
not find (one within the hour may, `r2v.llm.providers.dispatch.batch_caching`). A long conversation may be cheaper by
direct calls, and then goes that way whatever the wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from r2v.config import TeacherConfig
from r2v.llm.providers.dispatch.batch_caching import BatchCaching, kept_tokens
from r2v.llm.providers.dispatch.batch_polling import USUAL_WAIT
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import ProviderRequest, likely_prompt_tokens
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.log import logger
from r2v.wire.exchange import TokenCounts

_USUAL_OUTPUT = 200
"""Tokens of a completion, about."""
CALL_SECONDS = 5.0
"""What a direct call takes, about."""


@dataclass(frozen=True, kw_only=True)
class CollectionPlans:
    """Estimates of a collection by provider batches and by direct calls, and `line`, which names the choice."""

    usd_batch: float
    usd_direct: float
    hours_batch: float
    hours_direct: float
    line: str


def collection_plans(
    teacher: TeacherConfig,
    rate: Rate,
    tokens: TokenCounts,
    *,
    requests: float,
    episodes: float,
    turns: float,
    width: int,
) -> CollectionPlans:
    """Estimate both ways of asking a teacher `requests` requests of `tokens` together, in so many episodes of `turns`
    turns, of which `width` wait for batches at the same time."""
    batch, direct = (rate.usd(tokens, batch=batch, requests=max(1, round(requests))) for batch in (True, False))
    rounds = math.ceil(episodes / width) * turns
    hours_batch = rounds * USUAL_WAIT / 3600
    side_by_side = min(width, teacher.max_concurrent)
    hours_direct = max(rounds, requests / side_by_side) * CALL_SECONDS / 3600
    saved, waiting = direct - batch, (hours_batch - hours_direct) * teacher.waiting_usd_per_hour
    way, reason = (
        ("batches" if saved >= waiting else "direct"),
        f"batches save ${saved:.2f}, waiting costs ${waiting:.2f}",
    )
    setting = f"teacher.waiting_usd_per_hour={teacher.waiting_usd_per_hour:g}"
    if not rate.shape.batch or rate.batch >= 1.0:
        way, reason, setting = "direct", f"no batches at a discount for {rate.model}", "teacher.model_name"
    elif teacher.mode != "auto":
        way = "batches" if teacher.mode == "batch" else "direct"
        reason = setting = f"teacher.mode={teacher.mode}"
    line = (
        f"collection plan: episodes={episodes:g} batches=${batch:.2f}/{hours_batch:.2f}h "
        f'direct=${direct:.2f}/{hours_direct:.2f}h chosen={way} reason="{reason}" setting={setting}'
    )
    return CollectionPlans(
        usd_batch=batch, usd_direct=direct, hours_batch=hours_batch, hours_direct=hours_direct, line=line
    )


class BatchOrDirect:
    """Chooses for each wave, and logs each change of the choice."""

    def __init__(
        self, policy: DispatchPolicy, tracker: SpendTracker, caching: BatchCaching, *, batches: bool = True
    ) -> None:
        self._policy, self._tracker, self._caching = policy, tracker, caching
        self._most_open = 0
        self._last_choice: bool | None = None
        self.batches_available = batches

    def use_batch(self, requests: Sequence[ProviderRequest], num_open: int, typical_wait: float) -> bool:
        """Whether these go into a batch. num_open: requests in flight, these included. typical_wait: seconds that a
        batch takes, about."""
        if self._policy.mode != "auto":
            return self._policy.mode == "batch"
        if not self.batches_available or self._tracker.rate.batch >= 1.0:
            return False
        self._most_open = max(self._most_open, num_open)
        # all that is open waits together, for one batch after another: an hour is paid for once
        saved = self.saved_usd(requests, typical_wait) * max(1.0, num_open / len(requests))
        waiting_cost = typical_wait / 3600 * self._policy.waiting_usd_per_hour
        direct_worst_case, batch_worst_case = (
            sum(self._tracker.worst_case(request, batch=batch) for request in requests) for batch in (False, True)
        )
        if direct_worst_case > self._tracker.budget.within_reach >= batch_worst_case:
            return self._choose(True, "the budget covers no direct calls")
        if num_open <= self._policy.tail * self._most_open:
            return self._choose(False, f"the last {num_open} of {self._most_open} conversations")
        if saved < waiting_cost:
            return self._choose(
                False,
                f"batches of all {num_open} open requests save ${saved:.4f}, waiting about {typical_wait / 60:.0f} min "
                f"for them costs ${waiting_cost:.4f}",
            )
        return self._choose(True, f"batches of all {num_open} open requests save about ${saved:.2f}")

    def saved_usd(self, requests: Sequence[ProviderRequest], typical_wait: float) -> float:
        """USD that a batch of these is likely to save; below 0 where calls with a cache are cheaper."""
        rate = self._tracker.rate
        saved = 0.0
        for request in requests:
            prompt, output = likely_prompt_tokens(request), min(_USUAL_OUTPUT, request.max_tokens)
            kept = kept_tokens(request) if rate.cached < 1.0 else 0
            direct = TokenCounts(cached=kept, write_5m=prompt - kept, output=output) if kept else None
            fresh = TokenCounts(fresh=prompt, output=output)
            saved += rate.usd(direct or fresh, batch=False) - self._caching.usd(request, output, typical_wait)
        return saved

    def _choose(self, batch: bool, why: str) -> bool:
        if batch != self._last_choice:
            logger.info("  teacher.mode=auto: %s (%s)", "batches" if batch else "direct calls", why)
        self._last_choice = batch
        return batch
