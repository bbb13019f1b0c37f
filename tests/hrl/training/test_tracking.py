"""Measured peaks of phases beside the plan's. No GPU is needed: the meter is the tests'."""

from __future__ import annotations

import pytest

from r2v.hrl.parallel.micro_batch import largest_micro_batches, planned
from r2v.hrl.training.tracking import Tracking
from r2v.memory.on_device.peak_monitor import expected_peak
from r2v.memory.planner.training_job import CUBLAS_WORKSPACES
from tests.hrl.training.test_build import LARGE, PolicyConfig
from tests.memory.measuring import measure

PLAN = planned(
    PolicyConfig(model_name="meta-llama/Llama-3.2-3B", lora_r=16, max_seq_len=512),
    LARGE,
    "shared",
    80 * 2**30,
    1,
    measure=measure,
)


class Told:
    """A meter with given readings."""

    name, counts_tensors = "torch.cuda.max_memory_allocated", True

    def __init__(self, share: float) -> None:
        self.share, self.tokens = share, 300

    def reset(self) -> None:
        pass

    def peak(self) -> int:
        rows = largest_micro_batches(PLAN).of("actor")
        return int(self.share * (expected_peak(PLAN, "actor", rows=rows, tokens=self.tokens) + CUBLAS_WORKSPACES))


@pytest.mark.parametrize(("share", "warned"), [(1.02, False), (1.3, True), (0.8, False)])
def test_what_takes_a_tenth_more_than_planned_is_told_once(
    share: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tracking = Tracking({"cuda:0"}, PLAN, largest_micro_batches(PLAN), meter=lambda device: Told(share))
    for _ in range(2):
        with tracking.phase("actor", tokens=300):
            pass
    assert sum("memory exceeds the plan: phase=actor" in line for line in caplog.messages) == warned
    assert tracking.figures("actor")["memory/actor/cuda:0/of_planned"] == pytest.approx(share)


def test_where_nothing_was_planned_nothing_is_compared(caplog: pytest.LogCaptureFixture) -> None:
    tracking = Tracking({"cuda:0", "cuda:1"}, meter=lambda device: Told(1.0))
    with tracking.phase("actor", tokens=300):
        pass
    assert set(tracking.figures("actor")) == {"memory/actor/cuda:0", "memory/actor/cuda:1"} and not caplog.messages


def test_on_a_cpu_the_rise_of_the_process_is_noted() -> None:
    tracking = Tracking({"cpu"})
    with tracking.phase("rollout", tokens=1):
        held = bytearray(1)
    assert tracking.figures("rollout")["memory/rollout/rss_rise"] >= 0 and held
