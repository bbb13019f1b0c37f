"""Peak memory by phase, compared with the memory plan.

On GPUs a phase's peak of allocated tensors is measured on every GPU with a role. With a plan (all roles unsharded on
one GPU) it is compared with the planned peak for rows of their real length, and a deviation of more than a tenth is
logged once per phase. On a CPU the growth of the process's memory is only recorded.
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
"""Phase of a training -> the phases of a memory plan in it."""


class Tracking:
    """Memory monitor of `devices`. `plan`: of the single GPU with all roles. `sizes`: rows at a time."""

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
        """Measure the block. `tokens`: tokens of its longest row."""
        planned = self._planned(name, tokens)
        with ExitStack() as stack:
            for watch in self._watches.values():
                stack.enter_context(watch.phase(name, planned))
            yield

    def _planned(self, name: str, tokens: int) -> float:
        """Return the planned bytes; NaN, which gives no warning, without a plan."""
        names = {peak.phase.name for peak in self.plan.phases} if self.plan else set[str]()
        peaks = [
            expected_peak(self.plan, phase, rows=self.sizes.of(phase), tokens=tokens)
            for phase in PLANNED_PHASES.get(name, ())
            if self.plan and phase in names
        ]
        return max(peaks, default=float("nan"))

    def figures(self, name: str) -> dict[str, float]:
        """Return the phase's peak so far in GiB, and with a plan its ratio to the planned one."""
        figures = {}
        for device, watch in self._watches.items():
            reading = watch.readings[name]
            figures[f"memory/{name}/{device if reading.comparable else 'rss_rise'}"] = reading.measured / 2**30
            if reading.comparable and not math.isnan(reading.predicted):
                figures[f"memory/{name}/{device}/of_planned"] = 1 + reading.drift
        return figures


def timed(function: Callable[..., dict[str, float]], *args: Any) -> tuple[dict[str, float], float]:
    """Return the function's result and its duration in seconds."""
    began = time.monotonic()
    return function(*args), time.monotonic() - began
