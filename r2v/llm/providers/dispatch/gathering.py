"""Gathering: crowds of conversations that drifted apart travel together again.

A batch takes its time whatever it holds, so the hours of a run are those of its slowest chain of batches, and each
crowd that travels alone is one more chain. A crowd therefore leaves at once, unless

- answers of a batch are still being read: those who get them will ask too;
- one batch less could carry all that is open, or all but a small remainder, and the crowd is ahead of one that is out,
  by half a turn at least: it loses nothing by waiting for those behind, who decide when the run ends.

The remainder leaves with the others at the beginning, when all are at the same turn, and meets them again at the next
turn: on a chain of its own it would add more waits than it saves. Those who are furthest behind leave first. Nobody
waits longer than a few batches take. `benchmarks/waves.py` measures the rule beside a barrier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from r2v.llm.providers.provider_requests import ProviderRequest

_AHEAD = 0.5
"""Turns."""
_REMAINDER = 0.4
"""Share of a full batch below which what does not fit into the others is no chain of its own."""
_LONGEST_WAIT = 4.0
"""Typical waits for a batch."""


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """The requests of one batch that is out."""

    count: int
    turn: float
    """Their mean turn."""


def crowd_of(requests: Sequence[ProviderRequest]) -> Crowd:
    """The crowd of these requests, one at least."""
    return Crowd(count=len(requests), turn=fmean(request.turn for request in requests))


class Gathering:
    """Whether what waits may leave. clock times are seconds."""

    def __init__(self) -> None:
        self._held_since: float | None = None
        self.reading = 0
        """Batches whose results are being read."""

    def hold(
        self, waiting: Sequence[ProviderRequest], out: Sequence[Crowd], max_batch: int, typical_wait: float, now: float
    ) -> float:
        """Seconds that the next batch of these, which come in order of their turns, has to wait at most; 0: it may
        leave."""
        if not self._should_wait(waiting, out, max_batch):
            self._held_since = None
            return 0.0
        self._held_since = now if self._held_since is None else self._held_since
        left = self._held_since + _LONGEST_WAIT * typical_wait - now
        if left <= 0:
            self._held_since = None
        return max(0.0, left)

    def _should_wait(self, waiting: Sequence[ProviderRequest], out: Sequence[Crowd], max_batch: int) -> bool:
        if self.reading:
            return True
        if not out:
            return False
        full = (len(waiting) + sum(crowd.count for crowd in out)) / max_batch
        enough = max(1, math.ceil(full - _REMAINDER))
        ahead = crowd_of(waiting[:max_batch]).turn - min(crowd.turn for crowd in out)
        return len(out) >= enough and ahead >= _AHEAD
