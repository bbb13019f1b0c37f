"""Peak monitor: measured memory of each phase of a training run, compared with the plan.

On a GPU a phase's peak is torch.cuda.max_memory_allocated: bytes of tensors, as predicted by the plan, and of cuBLAS's
workspaces. On a CPU the rise of the process's peak resident memory is recorded under that name and not compared: it
includes Python and the libraries, and only exceeding every earlier peak changes it.
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
"""Share by which a measured peak may exceed the predicted one without a warning."""
_NOISE = 2**26
"""Excess bytes without a warning, for tiny models."""


class Meter(Protocol):
    """Reader of peak memory."""

    name: str
    """Name of the measured quantity."""
    counts_tensors: bool
    """True if a plan predicts this quantity."""

    def reset(self) -> None:
        """Start a new measurement."""

    def peak(self) -> int:
        """Return the peak in bytes since the last reset."""


class CudaMeter:
    """Meter of the bytes of tensors on one GPU, counted by torch's allocator."""

    name, counts_tensors = "torch.cuda.max_memory_allocated", True

    def __init__(self, device: Any) -> None:
        self.device = device

    def reset(self) -> None:
        """Start from the bytes allocated now."""
        import torch

        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the peak of allocated bytes since the last reset."""
        import torch

        return int(torch.cuda.max_memory_allocated(self.device))


class ProcessMeter:
    """Meter of the rise of the process's peak resident memory: 0 below an earlier peak."""

    name, counts_tensors = "rise of the process's peak resident memory", False

    def __init__(self) -> None:
        self._before = _peak_rss()

    def reset(self) -> None:
        """Start from the peak so far."""
        self._before = _peak_rss()

    def peak(self) -> int:
        """Return the rise in bytes since the last reset."""
        return _peak_rss() - self._before


def _peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def meter_of(device: Any) -> Meter:
    """Return the meter for a torch device or its name."""
    return CudaMeter(device) if str(device).startswith("cuda") else ProcessMeter()


@dataclass(frozen=True, kw_only=True)
class PeakReading:
    """Largest peak of a phase so far, and the plan's prediction for that run, in bytes."""

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
        """True if the peak exceeds the plan enough to warn. A lower peak is normal: at a first update the other
        networks' optimizer moments do not exist yet."""
        return self.drift > DRIFT and self.measured - self.predicted > _NOISE


class PeakMonitor:
    """Monitor of the peak of each phase. A run that raises is not counted, but its retry with fewer rows is."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.readings: dict[str, PeakReading] = {}
        self._warned: set[str] = set()

    @contextmanager
    def phase(self, name: str, predicted: float) -> Iterator[None]:
        """Measure the block; the plan predicts `predicted` bytes (`expected_peak`). Over many runs of a phase the
        largest is kept, and the first excess is logged."""
        self.meter.reset()
        yield
        if self.meter.counts_tensors:
            predicted += CUBLAS_WORKSPACES
        reading = PeakReading(
            measured=self.meter.peak(), predicted=predicted, meter=self.meter.name, comparable=self.meter.counts_tensors
        )
        largest = self.readings.get(name)
        if largest is None or reading.measured > largest.measured:
            self.readings[name] = reading
        if reading.comparable and reading.drifted and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "  memory exceeds the plan: phase=%s peak_gib=%s planned_gib=%s drift=%+.0f%% remedy=r2v plan --probe",
                *(name, gib(reading.measured), gib(predicted), 100 * reading.drift),
            )


def expected_peak(plan: Plan, phase: str, *, rows: int | None = None, tokens: int | None = None) -> float:
    """Return the predicted peak in bytes of a micro-batch of `rows` sequences of `tokens` tokens (None: as planned, at
    full length), calibration included. Raise KeyError for a phase that is not in the plan."""
    job, (device, planned) = plan.job, plan.phase(phase)
    run = planned.phase
    if tokens is not None:
        prompt = min(job.prompt_tokens, tokens - 1)
        job = replace(job, prompt_tokens=prompt, completion_tokens=tokens - prompt)
        run = replace(run, tokens=tokens)
    micro_batch = planned.micro_batch if rows is None else rows
    memory = phase_memory(job, plan.strategy, device.device, run, micro_batch, plan.lookup)
    return memory.corrected(plan.machine.factors.get(phase, 1.0)).total
