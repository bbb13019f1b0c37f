"""What training really takes of a GPU, held against what the plan said of it.

    watch = Watch(meter_of(device))
    with watch.phase("actor", expected(plan, "actor", rows=4, tokens=812)):
        ...                                     # one warning line where it was off by more than a tenth
    watch.record()                              # for the metrics

On a GPU a phase's peak is torch.cuda.max_memory_allocated: bytes of tensors, which is what the plan predicts. A CPU
has no such figure. There the growth of the process's peak memory is noted under its own name, and is compared with
nothing: it holds Python and libraries, and shows only what goes beyond all that came before.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from r2v.log import logger
from r2v.memory.planner.phases import Need, need
from r2v.memory.planner.planner import Plan
from r2v.memory.sizes import gib

DRIFT = 0.1
"""Share by which a measured peak may differ from the predicted one before a line warns of it."""


class Meter(Protocol):
    """Something that can tell the most bytes since it was reset."""

    name: str
    """What it measures."""
    counts_tensors: bool
    """Whether a plan predicts what it measures."""

    def reset(self) -> None:
        """Begin anew."""

    def peak(self) -> int:
        """The most bytes at a time since."""


class CudaMeter:
    """The bytes of tensors on one GPU, as torch's allocator counts them."""

    name, counts_tensors = "torch.cuda.max_memory_allocated", True

    def __init__(self, device: Any) -> None:
        self.device = device

    def reset(self) -> None:
        """The peak is what is allocated now."""
        import torch

        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Bytes."""
        import torch

        return int(torch.cuda.max_memory_allocated(self.device))


class ProcessMeter:
    """How far the peak of the process's resident memory has risen: 0 where something before it took more."""

    name, counts_tensors = "rise of the process's peak resident memory", False

    def __init__(self) -> None:
        self._before = _peak_rss()

    def reset(self) -> None:
        """What counts is what is taken beyond now."""
        self._before = _peak_rss()

    def peak(self) -> int:
        """Bytes."""
        return _peak_rss() - self._before


def _peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def meter_of(device: Any) -> Meter:
    """The meter for a torch device or its name."""
    return CudaMeter(device) if str(device).startswith("cuda") else ProcessMeter()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A phase's largest peak so far, and what the plan said of that very run. Bytes."""

    measured: int
    predicted: float
    meter: str
    comparable: bool

    @property
    def off(self) -> float:
        """By how much of the prediction more was taken; negative: less."""
        return self.measured / self.predicted - 1


class Watch:
    """Peaks of phases as they run. A run that raises is not counted: a retry with fewer rows will be."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.readings: dict[str, Reading] = {}
        self._warned: set[str] = set()

    @contextmanager
    def phase(self, name: str, predicted: float) -> Iterator[None]:
        """Measure the block; `predicted` are the bytes that the plan expects of it (`expected`). A phase may run many
        times: its largest run is kept, and one line warns of its first drift."""
        self.meter.reset()
        yield
        reading = Reading(
            measured=self.meter.peak(), predicted=predicted, meter=self.meter.name, comparable=self.meter.counts_tensors
        )
        kept = self.readings.get(name)
        if kept is None or reading.measured > kept.measured:
            self.readings[name] = reading
        if reading.comparable and abs(reading.off) > DRIFT and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "  memory: %s took %s GiB, %+.0f %% of the %s GiB planned; r2v plan --probe corrects it",
                name,
                gib(reading.measured),
                100 * reading.off,
                gib(predicted),
            )

    def record(self) -> dict[str, dict[str, Any]]:
        """By phase: bytes predicted and measured, what measured them, and their ratio where they compare."""
        return {
            name: {
                "predicted": round(one.predicted),
                "measured": one.measured,
                "meter": one.meter,
                **({"measured_over_predicted": round(1 + one.off, 4)} if one.comparable else {}),
            }
            for name, one in self.readings.items()
        }


def expected(
    plan: Plan, phase: str, *, rows: int | None = None, tokens: int | None = None, prompt: int | None = None
) -> float:
    """Bytes that a plan expects of a phase that takes this many rows of this many tokens at a time, `prompt` of them
    there before a generation began (None: as planned, rows of full length), with its calibration. Raises KeyError for
    a phase that it does not have."""
    work = plan.work
    if prompt is not None or tokens is not None:
        whole = tokens or work.tokens
        begun = min(work.prompt_tokens if prompt is None else prompt, whole - 1)
        work = replace(work, prompt_tokens=begun, completion_tokens=whole - begun)
    return _need(replace(plan, work=work), phase, rows, tokens).total


def _need(plan: Plan, name: str, rows: int | None, tokens: int | None) -> Need:
    for device in plan.devices:
        for one in device.phases:
            if one.phase.name == name:
                phase = one.phase if tokens is None else replace(one.phase, tokens=tokens)
                found = need(plan.work, plan.setting, device.device, phase, one.rows if rows is None else rows)
                return found.corrected(plan.machine.factors.get(name, 1.0))
    raise KeyError(name)
