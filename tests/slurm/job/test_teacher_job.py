"""The job that serves a teacher is submitted once for all stages, and again after it was lost."""

from __future__ import annotations

import json

import pytest

from r2v.slurm.job.teacher_job import teacher_job
from r2v.storage.paths import SCRIPTS
from r2v.storage.weights import BUNDLED
from tests import warm
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

SERVED = ["--overrides", "teacher.engine=job", f"teacher.model_name={BUNDLED['tiny']}"]


def queued(faked: Faked) -> list[dict[str, str]]:
    path = faked.folder / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else []


@pytest.fixture
def scripted(faked: Faked) -> Faked:
    scripts = faked.root / SCRIPTS
    scripts.mkdir(parents=True, exist_ok=True)
    (scripts / "teacher.sh").write_text((warm.ROOT / SCRIPTS / "teacher.sh").read_text())
    return faked


def test_any_number_of_stages_submit_one_server_and_another_where_it_is_gone(scripted: Faked) -> None:
    jobs = [teacher_job([stage, *SERVED], scripted.root) for stage in ("collect", "evaluate")]
    for job in (*jobs, *jobs):
        assert job is not None
        job.look()
    (row,) = [row for row in queued(scripted) if "r2v-teacher" in row["Comment"]]
    assert row["Name"] == "teacher"
    (scripted.folder / "jobs.json").write_text("[]")
    assert jobs[0] is not None
    jobs[0].look()
    assert len(queued(scripted)) == 1, "lost, and submitted again"


def test_one_that_cannot_start_is_not_submitted_for_ever(scripted: Faked, caplog: pytest.LogCaptureFixture) -> None:
    job = teacher_job(["collect", *SERVED], scripted.root)
    assert job is not None
    with caplog.at_level("INFO", logger="r2v"):
        for _ in range(8):
            job.look()
            (scripted.folder / "jobs.json").write_text("[]")
    assert caplog.text.count("submitted the teacher's server") == 6 and "ended_within_an_hour=6" in caplog.text


def test_a_stage_that_asks_no_teacher_or_a_providers_has_none(scripted: Faked) -> None:
    assert teacher_job(["train_policy", "--stage", "bc", *SERVED], scripted.root) is None
    assert teacher_job(["collect"], scripted.root) is None
    assert teacher_job(["collect", "--overrides", "teacher.engine=nonsense here"], scripted.root) is None


def test_a_refusal_is_a_line_and_the_stage_goes_on(scripted: Faked, caplog: pytest.LogCaptureFixture) -> None:
    scripted.down("sbatch", "sbatch: error: Batch job submission failed: QOSMaxSubmitJobPerUserLimit")
    job = teacher_job(["collect", *SERVED], scripted.root)
    assert job is not None
    job.look()
    assert "could not submit the teacher's server" in caplog.text
