"""Coalescing of batches: cohorts of conversations at different turns join one batch again.

A batch takes about the same time whatever its size, so a run takes as long as its slowest chain of batches, and each
cohort with batches of its own is one more chain. A cohort is therefore sent at once, unless

- answers of a batch are still being read, whose conversations will soon send requests too;
- one batch less could hold all open requests, or all but a small remainder, and the cohort is at least half a turn
  ahead of a batch in flight: waiting for the cohorts behind costs no time, because they decide when the run ends.

The remainder is sent with the others at the beginning, when all are at the same turn, and joins them at the next turn:
on a chain of its own it would add more waits than it saves. The requests furthest behind are sent first. No request
waits longer than a few batches take. `benchmarks/waves.py` compares the rule with a barrier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from r2v.llm.providers.provider_requests import ProviderRequest

_AHEAD = 0.5
"""Least lead in turns for which a cohort waits."""
_REMAINDER = 0.4
"""Share of a full batch below which a remainder gets no chain of its own."""
_LONGEST_WAIT = 4.0
"""Longest wait, in typical times of a batch."""


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The requests of one batch in flight."""

    count: int
    turn: float
    """Their mean turn."""


def cohort_of(requests: Sequence[ProviderRequest]) -> Cohort:
    """Return the cohort of one or more requests."""
    return Cohort(count=len(requests), turn=fmean(request.turn for request in requests))


class Coalescer:
    """Decision when the next batch of one run may be sent. Times are in seconds."""

    def __init__(self) -> None:
        self._held_since: float | None = None
        self.reading = 0
        """Number of batches whose results are being read."""

    def hold(
        self, waiting: Sequence[ProviderRequest], out: Sequence[Cohort], max_batch: int, typical_wait: float, now: float
    ) -> float:
        """Return the most seconds that the next batch of `waiting`, sorted by turn, has to wait; 0: send it now. out:
        cohorts in flight. max_batch: most requests in a batch."""
        if not self._should_wait(waiting, out, max_batch):
            self._held_since = None
            return 0.0
        self._held_since = now if self._held_since is None else self._held_since
        left = self._held_since + _LONGEST_WAIT * typical_wait - now
        if left <= 0:
            self._held_since = None
        return max(0.0, left)

    def _should_wait(self, waiting: Sequence[ProviderRequest], out: Sequence[Cohort], max_batch: int) -> bool:
        if self.reading:
            return True
        if not out:
            return False
        full = (len(waiting) + sum(cohort.count for cohort in out)) / max_batch
        enough = max(1, math.ceil(full - _REMAINDER))
        ahead = cohort_of(waiting[:max_batch]).turn - min(cohort.turn for cohort in out)
        return len(out) >= enough and ahead >= _AHEAD
