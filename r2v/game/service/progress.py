"""Progress of a whole job: a line now and then that says how many of its conversations are over.

96 of 240 conversations over (40 %), 1 incomplete, $0.4210 at list price, 0:12:30 so far, about 0:18:45 left
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from r2v.game.play.records import Interaction

LINES_OF_A_JOB = 20
"""Lines of a job, at most, unless it is slow."""
SECONDS = 60.0
"""A line is told after so long, however little is over since the last."""


class JobProgress:
    """Counts conversations that are over, and tells `on_line` when a twentieth more is, or after a minute."""

    def __init__(
        self,
        total: int,
        on_line: Callable[[str], None],
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._on_line, self._clock = total, on_line, clock
        self._over, self._before, self._incomplete, self._usd = done, done, 0, 0.0
        self._start = self._told_at = clock()
        self._told = done

    def over(self, interaction: Interaction) -> None:
        """One more conversation is over."""
        self._over += 1
        self._incomplete += interaction.incomplete is not None
        self._usd += interaction.cost_usd
        now = self._clock()
        is_step = self._over * LINES_OF_A_JOB // self._total > self._told * LINES_OF_A_JOB // self._total
        if is_step or now - self._told_at >= SECONDS:
            self._on_line(self._line(now))
            self._told, self._told_at = self._over, now

    def _line(self, now: float) -> str:
        seconds = now - self._start
        left = seconds * (self._total - self._over) / (self._over - self._before)
        parts = [
            f"{self._over} of {self._total} conversations over ({100 * self._over // self._total} %)",
            f"{self._incomplete} incomplete",
            f"${self._usd:.4f} at list price",
            f"{timedelta(seconds=round(seconds))} so far",
        ]
        if self._over < self._total:
            parts.append(f"about {timedelta(seconds=round(left))} left")
        return ", ".join(parts)
