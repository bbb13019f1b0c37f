"""GPU-hours of a chain: the larger of accounting's figure and that of the jobs' own records."""

from __future__ import annotations

import pytest

from r2v.slurm.healing.gpu_hours import gpu_hours
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked


@pytest.mark.parametrize(
    ("seconds", "gpus", "hours"), [(None, 2, 3.0), (3600, 2, 3.0), (7200, 2, 4.0), (None, 0, 0.0), (1800, 0, 1.0)]
)
def test_gpu_hours_are_what_is_allotted_or_recorded_whichever_is_more(
    seconds: int | None, gpus: int, hours: float, faked: Faked
) -> None:
    made = faked.chain()
    times = {"at": "2026-01-01T00:00:00+00:00"}, {"at": "2026-01-01T01:30:00+00:00"}
    faked.record("104", start={"gpus": gpus, **times[0]}, exit=times[1])
    if seconds is not None:
        faked.accounted("104", "FAILED", ElapsedRaw=seconds, AllocTRES="gres/gpu=2,node=1")
    faked.answer()
    assert gpu_hours(faked.root, made) == hours


def test_restarts_and_jobs_add_up_and_a_clock_that_went_back_takes_nothing_away(faked: Faked) -> None:
    made = faked.chain()
    for elapsed in (1800, 900):
        faked.accounted("104", "PREEMPTED", ElapsedRaw=elapsed, AllocTRES="gres/gpu=2,node=1", _old=elapsed == 1800)
    faked.accounted("106", "COMPLETED", ElapsedRaw=3600, AllocTRES="gres/gpu=1,node=1")
    faked.record("100", start={"gpus": 4, "at": "2026-01-01T02:00:00+00:00"}, exit={"at": "2026-01-01T01:00:00+00:00"})
    faked.answer()
    assert gpu_hours(faked.root, made) == 1.0 + 0.5 + 1.0


def test_helpers_are_paid_from_the_same_hours(faked: Faked) -> None:
    made = faked.chain()
    faked.record("116", helpers={"arrays": ["90"]})
    for job in ("116", "90_1", "90_2"):
        faked.accounted(job, "COMPLETED", ElapsedRaw=1800, AllocTRES="gres/gpu=1,node=1")
    faked.answer()
    assert gpu_hours(faked.root, made) == 1.5
