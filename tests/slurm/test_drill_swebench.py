"""`bash run_all.sh swebench` as typed, on a real Slurm: ten jobs over bundled instances, in the sandbox of each job."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.emulator import Emulator
from r2v.emulator.answers import first_of
from r2v.envs.swe.recipes import recipes
from tests import trust
from tests.envs.swe.made import graded, walls
from tests.envs.swe.test_pipeline import SMALL
from tests.envs.swe.test_recipes import installed
from tests.llm.talk import environment
from tests.slurm.cluster import Cluster
from tests.slurm.project import JOBS, ROOT, Project

CHAIN = "swebench_noisy"


@walls
@graded
@installed
@pytest.mark.skipif(not trust.whole_suites, reason="some minutes: --whole-suites")
def test_the_shipped_configuration_and_headers_end_well_in_ten_jobs(slurm: Cluster, tmp_path: Path) -> None:
    project = Project(slurm, tmp_path / "project", fake_stages=False)
    shutil.copytree(ROOT / "configs/swebench", project.folder / "configs/swebench")
    model = hub_model("llama", tmp_path / "model", [recipe.problem_statement for recipe in recipes()])
    with Emulator(answer=first_of(["judge", "swebench"])) as emulator:
        project.env |= environment(emulator)
        words = ["bash", "run_all.sh", "swebench", "--overrides", *SMALL, f"policy.model_name={model}"]
        print(project.run(*words).stdout)
        project.drained(3600)
        paid = len(emulator.ledger().paid())
    print(project.r2v("status", CHAIN, check=False).stdout)
    (told,) = json.loads(project.r2v("status", CHAIN, "--json", check=False).stdout)["chains"]
    assert {job["job"]: job["state"] for job in told["jobs"]} == dict.fromkeys(JOBS, "done")
    assert paid, "the emulated provider taught and judged"
    audit = project.r2v("verify-results", f"results/{CHAIN}").stdout
    assert "replayed with the recorded results" in audit
    print(audit.splitlines()[0])
