"""The choice between a batch at a discount and direct calls that are answered at once (mode auto).

A wave goes into a batch unless it is the tail of the run (few conversations are left, and all of them would wait for
it), or unless the batch saves less than the wait for it costs. Where the budget covers a batch but not the calls, it
goes into a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import TokenCounts
from r2v.llm.providers.provider_requests import ProviderRequest, likely_prompt_tokens
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.log import logger

_USUAL_OUTPUT = 200
"""Tokens of a completion, about."""


class BatchOrDirect:
    """Chooses for each wave, and logs each change of the choice."""

    def __init__(self, policy: DispatchPolicy, tracker: SpendTracker, *, batches: bool = True) -> None:
        self._policy, self._tracker = policy, tracker
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
        saved = self.saved_usd(requests)
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
                f"a batch of {len(requests)} requests saves ${saved:.4f}, waiting about {typical_wait / 60:.0f} min "
                f"for it costs ${waiting_cost:.4f}",
            )
        return self._choose(True, f"a batch of {len(requests)} requests saves about ${saved:.2f}")

    def saved_usd(self, requests: Sequence[ProviderRequest]) -> float:
        """USD that a batch of these is likely to save."""
        rate = self._tracker.rate
        full_price = sum(
            rate.usd(
                TokenCounts(fresh=likely_prompt_tokens(request), output=min(_USUAL_OUTPUT, request.max_tokens)),
                batch=False,
            )
            for request in requests
        )
        return full_price * (1.0 - rate.batch)

    def _choose(self, batch: bool, why: str) -> bool:
        if batch != self._last_choice:
            logger.info("  teacher.mode=auto: %s (%s)", "batches" if batch else "direct calls", why)
        self._last_choice = batch
        return batch
