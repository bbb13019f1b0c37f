"""Peaks of memory, phase by phase, beside what the plan said of them.

On GPUs a phase's peak is counted in tensors on every GPU that a role stands on, and where a plan was made (all roles on
one GPU, in one piece) it is held against the plan's for rows as long as they really are; one line warns of a phase that
is off by more than a tenth. On a CPU the rise of the process's memory is noted and held against nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from r2v.memory.peak_monitor import Meter, PeakMonitor, expected_peak, meter_of
from r2v.memory.planner.planner import Plan

PLANNED = {"freeze": ("reference",), "actor": ("actor",), "guidance": ("guidance", "value")}
"""Phases of a training, and those of a plan that run in them."""


class Tracking:
    """Watches over `devices`. `plan` is that of the one GPU that holds all roles; `rows` at a time."""

    def __init__(
        self, devices: set[str], plan: Plan | None = None, rows: int = 1, meter: Callable[[str], Meter] = meter_of
    ) -> None:
        self.plan, self.rows = plan, rows
        self._watches = {device: PeakMonitor(meter(device)) for device in sorted(devices)}

    @contextmanager
    def phase(self, name: str, tokens: int) -> Iterator[None]:
        """Measure the block, whose longest row has so many tokens."""
        planned = self._planned(name, tokens)
        with ExitStack() as stack:
            for watch in self._watches.values():
                stack.enter_context(watch.phase(name, planned))
            yield

    def _planned(self, name: str, tokens: int) -> float:
        """Bytes; not a number where no plan says, of which no line warns."""
        names = {one.phase.name for one in self.plan.phases} if self.plan else set[str]()
        found = [
            expected_peak(self.plan, one, rows=self.rows, tokens=tokens)
            for one in PLANNED.get(name, ())
            if self.plan and one in names
        ]
        return max(found, default=float("nan"))

    def figures(self, name: str) -> dict[str, float]:
        """GiB that the phase took at most so far, and its share of what was planned, where that was."""
        found = {}
        for device, watch in self._watches.items():
            reading = watch.readings[name]
            found[f"memory/{name}/{device if reading.comparable else 'rss_rise'}"] = reading.measured / 2**30
            if reading.comparable and not math.isnan(reading.predicted):
                found[f"memory/{name}/{device}/of_planned"] = 1 + reading.drift
        return found
