"""Peak monitor: the memory that each phase of a training run takes, compared with what the plan predicted.

    monitor = PeakMonitor(meter_of(device))
    with monitor.phase("actor", expected_peak(plan, "actor", rows=4, tokens=812)):
        ...                                     # one warning line where it was off by more than a tenth
    monitor.readings["actor"].measured          # for the metrics

On a GPU a phase's peak is torch.cuda.max_memory_allocated: bytes of tensors, which is what the plan predicts, and of
cuBLAS's workspaces. A CPU has no such figure. There the rise of the process's peak resident memory is recorded under
that name and compared with nothing: it includes Python and the libraries, and shows only what exceeds every earlier
peak.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from r2v.log import logger
from r2v.memory.planner.phases import phase_memory
from r2v.memory.planner.planner import Plan
from r2v.memory.planner.training_job import CUBLAS_WORKSPACES
from r2v.memory.sizes import gib

DRIFT = 0.1
"""Share by which a measured peak may differ from the predicted one before a line warns of it."""
_NOISE = 2**26
"""Bytes of which no line warns: a tenth of a tiny model."""


class Meter(Protocol):
    """What reads a peak: the most bytes since it was reset."""

    name: str
    """What it measures."""
    counts_tensors: bool
    """Whether a plan predicts what it measures."""

    def reset(self) -> None:
        """Start a new measurement."""

    def peak(self) -> int:
        """The most bytes at a time since the last reset."""


class CudaMeter:
    """The bytes of tensors on one GPU, as torch's allocator counts them."""

    name, counts_tensors = "torch.cuda.max_memory_allocated", True

    def __init__(self, device: Any) -> None:
        self.device = device

    def reset(self) -> None:
        """Start from what is allocated now."""
        import torch

        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """The most bytes allocated at a time since the last reset."""
        import torch

        return int(torch.cuda.max_memory_allocated(self.device))


class ProcessMeter:
    """How far the process's peak resident memory has risen: 0 where something before it took more."""

    name, counts_tensors = "rise of the process's peak resident memory", False

    def __init__(self) -> None:
        self._before = _peak_rss()

    def reset(self) -> None:
        """Start from the peak so far."""
        self._before = _peak_rss()

    def peak(self) -> int:
        """The most bytes allocated at a time since the last reset."""
        return _peak_rss() - self._before


def _peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def meter_of(device: Any) -> Meter:
    """The meter for a torch device or its name."""
    return CudaMeter(device) if str(device).startswith("cuda") else ProcessMeter()


@dataclass(frozen=True, kw_only=True)
class PeakReading:
    """A phase's largest peak so far, and what the plan predicted for that run. Bytes."""

    measured: int
    predicted: float
    meter: str
    comparable: bool

    @property
    def drift(self) -> float:
        """(measured - predicted) / predicted."""
        return self.measured / self.predicted - 1

    @property
    def drifted(self) -> bool:
        """Whether more was taken than planned, so much that the user should know. Less is no fault: a first update has
        no other network's moments beside it."""
        return self.drift > DRIFT and self.measured - self.predicted > _NOISE


class PeakMonitor:
    """Measures the peak of each phase as it runs. A run that raises is not counted: its retry with fewer rows will
    be."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.readings: dict[str, PeakReading] = {}
        self._warned: set[str] = set()

    @contextmanager
    def phase(self, name: str, predicted: float) -> Iterator[None]:
        """Measure the block, whose peak the plan predicts as `predicted` bytes (`expected_peak`). A phase may run many
        times: its largest run is kept, and one line warns of its first drift."""
        self.meter.reset()
        yield
        if self.meter.counts_tensors:
            predicted += CUBLAS_WORKSPACES
        reading = PeakReading(
            measured=self.meter.peak(), predicted=predicted, meter=self.meter.name, comparable=self.meter.counts_tensors
        )
        kept = self.readings.get(name)
        if kept is None or reading.measured > kept.measured:
            self.readings[name] = reading
        if reading.comparable and reading.drifted and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "  memory: %s took %s GiB, %+.0f %% of the %s GiB planned; r2v plan --probe corrects it",
                name,
                gib(reading.measured),
                100 * reading.drift,
                gib(predicted),
            )


def expected_peak(plan: Plan, phase: str, *, rows: int | None = None, tokens: int | None = None) -> float:
    """Peak in bytes that a plan predicts for a micro-batch of `rows` sequences of `tokens` tokens (None: as planned, at
    full length), its calibration included. Raises KeyError for a phase that the plan does not have."""
    job, (device, planned) = plan.job, plan.phase(phase)
    asked = planned.phase
    if tokens is not None:
        prompt = min(job.prompt_tokens, tokens - 1)
        job = replace(job, prompt_tokens=prompt, completion_tokens=tokens - prompt)
        asked = replace(asked, tokens=tokens)
    micro_batch = planned.micro_batch if rows is None else rows
    memory = phase_memory(job, plan.strategy, device.device, asked, micro_batch, plan.lookup)
    return memory.corrected(plan.machine.factors.get(phase, 1.0)).total
