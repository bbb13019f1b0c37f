"""Peak memory by phase, compared with the memory plan.

On GPUs a phase's peak of allocated tensors is measured on every GPU that a role stands on. Where there is a plan (all
roles unsharded on one GPU) it is compared with the planned peak for rows of their real length; one line warns of a
phase that is off by more than a tenth. On a CPU the growth of the process's memory is recorded and compared with
nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from r2v.hrl.parallel.micro_batch import MicroBatchSizes
from r2v.memory.on_device.peak_monitor import Meter, PeakMonitor, expected_peak, meter_of
from r2v.memory.planner.planner import Plan

PLANNED_PHASES = {"advantages": ("reference",), "actor": ("actor",), "guidance": ("guidance", "value")}
"""Phases of a training, and the phases of a memory plan that run in them."""


class Tracking:
    """Watches over `devices`. `plan` is that of the one GPU that holds all roles; `sizes` are the rows at a time."""

    def __init__(
        self,
        devices: set[str],
        plan: Plan | None = None,
        sizes: MicroBatchSizes | None = None,
        meter: Callable[[str], Meter] = meter_of,
    ) -> None:
        self.plan, self.sizes = plan, sizes or MicroBatchSizes(smallest=1)
        self._watches = {device: PeakMonitor(meter(device)) for device in sorted(devices)}

    @contextmanager
    def phase(self, name: str, tokens: int) -> Iterator[None]:
        """Measure the block; its longest row has `tokens` tokens."""
        planned = self._planned(name, tokens)
        with ExitStack() as stack:
            for watch in self._watches.values():
                stack.enter_context(watch.phase(name, planned))
            yield

    def _planned(self, name: str, tokens: int) -> float:
        """Planned bytes; NaN without a plan, which gives no warning."""
        names = {one.phase.name for one in self.plan.phases} if self.plan else set[str]()
        found = [
            expected_peak(self.plan, one, rows=self.sizes.of(one), tokens=tokens)
            for one in PLANNED_PHASES.get(name, ())
            if self.plan and one in names
        ]
        return max(found, default=float("nan"))

    def figures(self, name: str) -> dict[str, float]:
        """The phase's peak so far in GiB, and its ratio to the planned one, where there is a plan."""
        found = {}
        for device, watch in self._watches.items():
            reading = watch.readings[name]
            found[f"memory/{name}/{device if reading.comparable else 'rss_rise'}"] = reading.measured / 2**30
            if reading.comparable and not math.isnan(reading.predicted):
                found[f"memory/{name}/{device}/of_planned"] = 1 + reading.drift
        return found


def timed(function: Callable[..., dict[str, float]], *args: Any) -> tuple[dict[str, float], float]:
    """Return the function's result, and the seconds that it took."""
    began = time.monotonic()
    return function(*args), time.monotonic() - began
