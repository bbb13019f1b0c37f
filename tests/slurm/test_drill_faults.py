"""Drills of a real Slurm that answers badly: each fault of the simulator, before each of its commands.

A chain of two is submitted and its first stage healed; then another is submitted and cancelled. The end is that of a
Slurm without faults: an empty queue, nothing made twice, no job outside of every chain.
"""

from __future__ import annotations

import pytest

from tests.slurm.fault_shim import FAULTS, PROGRAMS, shim
from tests.slurm.project import NAME, Project

LEFT_OUT = ("--without", "router", "evaluate", "ablations")
TYPED_AGAIN = ("error", "late", "hang", "full", "killed")
"""Faults after which a person repeats a command: it gave up after 15 seconds and said so, or was killed."""


def made_by(project: Project, job: str) -> int:
    """Return the number of starts of a job that have made their result."""
    return sum(path.read_text().count(f"{job} ended at") for path in project.folder.glob("logs/*.out"))


def strangers(project: Project) -> set[str]:
    """Return the Slurm jobs that ran a stage and belong to no chain."""
    begun = {path.parent.name for path in (project.folder / "outputs/.chains" / NAME / "jobs").glob("*/start.json")}
    return begun - {one["id"] for job in project.chain()["jobs"].values() for one in job["attempts"]}


def typed(project: Project, fault: str, *words: str) -> None:
    """Type a command, and a second time where the fault asks for that."""
    tries = 8 if fault in TYPED_AGAIN else 1
    while (done := project.r2v(*words, check=False)).returncode and (tries := tries - 1):
        pass
    assert done.returncode == 0, done.stderr


def settled(project: Project) -> tuple[int, dict[str, str]]:
    """Return the exit code of `r2v status` and the state of each job, once the chain is no longer active."""

    def told() -> tuple[int, dict[str, str]] | None:
        if project.r2v("status", NAME, check=False).returncode not in (0, 1):  # active, killed, or not answered
            return None
        code, jobs = project.status()
        return (code, {job: one["state"] for job, one in jobs.items()}) if code != 10 else None

    found: tuple[int, dict[str, str]] = project.cluster.wait(told, 400, every=1.0)
    return found


@pytest.mark.whole
@pytest.mark.parametrize("fault", FAULTS)
def test_a_real_slurm_that_answers_badly_leaves_nothing_wrong(fault: str, made: Project) -> None:
    injected = shim(made, fault, times=1 if fault in ("hang", "killed") else 2)
    made.behave(preference={"cuda_oom_above": 4})
    typed(made, fault, "run_all", "desk", *LEFT_OUT, "--overrides", "training.preference.lr=3e-4")
    code, jobs = settled(made)
    made.drained(400)
    assert code == 0 and set(jobs.values()) <= {"done", "up to date"}, jobs
    assert [made_by(made, job) for job in ("preference", "router_features")] == [1, 1]
    attempts = [one["reason"] for one in made.attempts("preference")]
    assert attempts[:2] == ["first", "cuda_oom"] or fault == "killed", attempts
    assert len(attempts) <= (4 if fault == "killed" else 2), attempts
    assert not strangers(made)

    before = {one["id"] for job in made.chain()["jobs"].values() for one in job["attempts"]}
    made.behave(preference={"hold": "never"})
    typed(made, fault, "run_all", "desk", *LEFT_OUT, "--overrides", "training.preference.lr=5e-4")
    made.cluster.wait(lambda: "began" in made.log("preference"), 200)
    typed(made, fault, "cancel", NAME)
    made.drained(200)
    assert settled(made)[1]["preference"] == "cancelled" and strangers(made) <= before
    assert injected() == set(PROGRAMS)
