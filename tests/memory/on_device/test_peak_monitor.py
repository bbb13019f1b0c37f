"""Measured peaks against the plan: warnings and readings. No GPU is needed: the meter is the tests'."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from r2v.memory.measured.tracker import Tracker
from r2v.memory.models import known_model
from r2v.memory.on_device.peak_monitor import PeakMonitor, ProcessMeter, expected_peak, meter_of
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.training_job import CUBLAS_WORKSPACES, Machine, TrainingJob
from r2v.memory.sizes import GIB
from tests.memory.measuring import lookup

MIB = 2**20

WORK = TrainingJob(
    stage="hierarchical",
    code="r2v.hrl.training.rehearsal:memory",
    model=known_model("Llama-3.2-3B"),
    critic=known_model("roberta-base"),
)


class Told:
    """A meter with given readings."""

    name, counts_tensors = "torch.cuda.max_memory_allocated", True

    def __init__(self, *peaks: float) -> None:
        self.peaks, self.resets = list(peaks), 0

    def reset(self) -> None:
        self.resets += 1

    def peak(self) -> int:
        return int(self.peaks.pop(0))


class Counted:
    """A meter of live tensors, by the tracker."""

    name, counts_tensors = "live tensors", True

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def reset(self) -> None:
        self.span = self.tracker.span("now")
        self.span.__enter__()

    def peak(self) -> int:
        self.span.__exit__(None, None, None)
        return self.tracker.peaks["now"]


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(WORK, Machine(memory=44.53 * GIB), lookup)


def test_a_drift_of_more_than_a_tenth_is_told_once_a_phase(caplog: pytest.LogCaptureFixture) -> None:
    """A smaller drift is not reported: the first update of a network has no other's moments beside it; nor is a tiny
    model's tenth."""
    watch = PeakMonitor(Told(10.9 * GIB, 11.5 * GIB, 12 * GIB, 8 * GIB, 0.13 * GIB))
    for phase in ("actor", "actor", "actor", "critic"):
        with watch.phase(phase, 10 * GIB - CUBLAS_WORKSPACES):
            pass
    with watch.phase("value", 0.03 * GIB):
        pass
    assert [one.getMessage() for one in caplog.records] == [
        "  memory exceeds the plan: phase=actor peak_gib=11.50 planned_gib=10.00 drift=+15% remedy=r2v plan --probe"
    ]


def test_the_record_keeps_each_phases_largest_run() -> None:
    watch = PeakMonitor(Told(900 * MIB, 1050 * MIB, 1000 * MIB))
    for predicted in (900, 1000, 990):
        with watch.phase("actor", predicted * MIB - CUBLAS_WORKSPACES):
            pass
    (reading,) = watch.readings.values()
    assert (reading.predicted, reading.measured) == (1000 * MIB, 1050 * MIB)
    assert reading.drift == pytest.approx(0.05) and reading.comparable
    assert reading.meter == "torch.cuda.max_memory_allocated"


def test_a_run_that_raises_is_not_counted() -> None:
    watch = PeakMonitor(Told(1000))
    with pytest.raises(torch.OutOfMemoryError), watch.phase("actor", 1000):
        raise torch.OutOfMemoryError
    assert watch.readings == {}


def test_live_tensors_of_the_block_alone_are_measured() -> None:
    with Tracker() as tracker:
        watch = PeakMonitor(Counted(tracker))
        rest = torch.zeros(256)
        torch.zeros(1 << 16)
        with watch.phase("actor", 5120):
            (rest * 2 + 1).sum()
    assert watch.readings["actor"].measured == 3 * 1024, "what stands there, and two temporaries"


def below_the_peak() -> int:
    """Return the bytes that this process may take before its peak, set by earlier tests, rises."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident)


def test_on_a_cpu_the_process_is_measured_and_compared_with_nothing(caplog: pytest.LogCaptureFixture) -> None:
    meter = meter_of("cpu")
    assert isinstance(meter, ProcessMeter)
    watch = PeakMonitor(meter)
    rise = 256 << 20
    with watch.phase("actor", 1.0):
        held = torch.ones((below_the_peak() + rise) // 4)
    del held
    with watch.phase("nothing", 1.0):
        pass
    actor, nothing = (watch.readings[name] for name in ("actor", "nothing"))
    assert actor.meter == "rise of the process's peak resident memory"
    assert not actor.comparable and not caplog.records
    assert nothing.measured < 1 << 20, "no peak above the one before"
    assert actor.measured > rise // 2


def test_shorter_rows_are_expected_to_take_less(found: Plan) -> None:
    """Rows are as long as their texts: drift is of the arithmetic, not of the lengths."""
    for phase in ("actor", "critic", "reference", "rollout, actor"):
        whole = expected_peak(found, phase)
        assert expected_peak(found, phase, tokens=64) < expected_peak(found, phase, tokens=256) < whole
        assert expected_peak(found, phase, rows=1) < whole
    of = {one.phase.name: one.memory.total for one in found.phases}
    assert expected_peak(found, "actor") == of["actor"]
    assert expected_peak(found, "rollout, actor", tokens=WORK.tokens) == of["rollout, actor"]
    with pytest.raises(KeyError):
        expected_peak(found, "nobody")
