"""`bash run_all.sh swebench` as typed, on a real Slurm: ten jobs over bundled instances, in the sandbox of each job."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.emulator.answers import first_of
from r2v.envs.swe.recipes import recipes
from tests.envs.swe.made import graded, walls
from tests.envs.swe.test_pipeline import SMALL
from tests.envs.swe.test_recipes import installed
from tests.slurm.cluster import Cluster
from tests.slurm.shipped import ten_jobs


@walls
@graded
@installed
@pytest.mark.whole
def test_the_shipped_configuration_and_headers_end_well_in_ten_jobs(slurm: Cluster, tmp_path: Path) -> None:
    model = hub_model("llama", tmp_path / "model", [recipe.problem_statement for recipe in recipes()])
    words = [*SMALL, f"policy.model_name={model}"]
    ten_jobs(slurm, tmp_path / "project", "swebench", words, first_of(["judge", "swebench"]))
