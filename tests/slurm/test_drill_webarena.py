"""`bash run_all.sh webarena` as typed, on a real Slurm: ten jobs on stub sites, a real Chromium in those that play."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.emulator.answers import first_of
from r2v.envs.webarena.tasks import chosen_tasks
from tests.envs.webarena import real_worlds
from tests.envs.webarena.answers import answer
from tests.envs.webarena.stubs import Stub
from tests.envs.webarena.test_pipeline import SMALL, TASKS
from tests.slurm.cluster import Cluster
from tests.slurm.shipped import ten_jobs


@real_worlds
@pytest.mark.whole
def test_the_shipped_configuration_and_headers_end_well_in_ten_jobs(slurm: Cluster, tmp_path: Path) -> None:
    model = hub_model("llama", tmp_path / "model", [task.goal for task in chosen_tasks(TASKS, None)])
    words, stub = [*SMALL, f"policy.model_name={model}"], Stub()
    try:
        answers = first_of(["judge", answer])
        project = ten_jobs(slurm, tmp_path / "project", "webarena", words, answers, stub.variables())
        print(regraded := project.r2v("webarena", "regrade").stdout)
    finally:
        stub.close()
    assert "regraded by webarena-verified (not replayed)" in regraded
