"""Drills of a real Slurm that answers badly: each fault of the simulator, before each of its commands.

A chain of two is submitted and its first stage healed; then another is submitted and cancelled. What is left is what a
Slurm without faults leaves: nothing in the queue, nothing made twice, no job that stands in no chain.
"""

from __future__ import annotations

import pytest

from tests import trust
from tests.slurm.fault_shim import FAULTS, PROGRAMS, shim
from tests.slurm.project import NAME, Project

LEFT_OUT = ("--without", "router", "evaluate", "ablations")
QUICK = "lost"
"""The worst of them: what was carried out, and nobody says so."""


def made_by(project: Project, job: str) -> int:
    """How many starts of a job have made their result."""
    return sum(path.read_text().count(f"{job} ended at") for path in project.folder.glob("logs/*.out"))


def strangers(project: Project) -> set[str]:
    """Slurm jobs that worked at a stage and stand in no chain."""
    begun = {path.parent.name for path in (project.folder / "outputs/.chains" / NAME / "jobs").glob("*/start.json")}
    return begun - {one["id"] for job in project.chain()["jobs"].values() for one in job["attempts"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_real_slurm_that_answers_badly_leaves_nothing_wrong(fault: str, made: Project) -> None:
    if fault != QUICK and not trust.whole_suites:
        pytest.skip("minutes; --whole-suites plays every fault")
    injected = shim(made, fault, times=1 if fault == "hang" else 2)
    made.behave(preference={"cuda_oom_above": 4})
    made.r2v("run_all", "desk", *LEFT_OUT, "--overrides", "training.preference.lr=3e-4")
    made.drained(400)
    code, jobs = made.cluster.wait(lambda: (told := made.status())[0] != 10 and told, 400)
    assert code == 0 and {job["state"] for job in jobs.values()} <= {"done", "up to date"}, jobs
    assert [made_by(made, job) for job in ("preference", "router_features")] == [1, 1]
    assert len(made.attempts("preference")) == 2 and not strangers(made)

    before = strangers(made) | set(made.ids().values()) | {one["id"] for one in made.attempts("preference")}
    made.behave(preference={"hold": "never"})
    made.r2v("run_all", "desk", *LEFT_OUT, "--overrides", "training.preference.lr=5e-4")
    made.cluster.wait(lambda: "began" in made.log("preference"), 200)
    made.r2v("cancel", NAME)
    made.drained(200)
    assert made.status()[0] == 1 and strangers(made) <= before, "a changed configuration begins a chain anew"
    assert injected() == set(PROGRAMS)
