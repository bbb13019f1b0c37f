"""A teacher that the chain serves itself, on a real Slurm: no key, no network, its job killed three times."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.llm.providers.spending.project import ProjectLedger
from r2v.storage.weights import BUNDLED
from tests import trust
from tests.llm.engines.stand_in import stand_in
from tests.slurm.cluster import Cluster
from tests.slurm.project import NAME, Project

_TEACHER = """
teacher:
  engine: job
  model_name: {model}
  engine_venv: {home}
  max_tokens: 64
  context: 8192
  preflight: false
  max_concurrent: 2
  usd_in: 3.0
  usd_out: 12.0
  max_usd: 50.0
"""
_STAGES = ("collect", "router_features", "evaluate")
"""Stages during which the teacher's job is killed."""


@pytest.mark.whole
def test_a_chain_ends_well_after_three_kills_of_its_teacher(slurm: Cluster, tmp_path: Path) -> None:
    home = stand_in(tmp_path / "engine")
    config = trust.MICRO.read_text().replace("prefix: micro\n", "") + _TEACHER.format(model=BUNDLED["tiny"], home=home)
    project = Project(slurm, tmp_path / "project", config=config, fake_stages=False)
    assert not any(name.endswith("_API_KEY") for name in project.env)

    def running(name: str) -> bool:
        return any(line.split()[1:] == [name, "RUNNING"] for line in slurm.squeue("%i %j %T"))

    def teacher() -> str | None:
        rows = [line.split() for line in slurm.squeue("%i %j %T")]
        return next((id_ for id_, name, state in rows if name == "teacher" and state == "RUNNING"), None)

    def answered() -> int:
        books = ProjectLedger(project.folder)
        return sum(books.book(entry).answered for entry in books.entries())

    project.run("bash", "run_all.sh", "desk", "--without", "ablations", "--overrides", "anyway=true")
    killed = []
    for stage in _STAGES:
        slurm.wait(lambda stage=stage: running(f"{stage}_{NAME}") or running(stage), 900)
        before = answered()
        slurm.wait(lambda before=before: teacher() and answered() > before, 300)
        killed.append(teacher())
        slurm.run("scancel", str(killed[-1]))
    slurm.wait(lambda: project.status()[1]["evaluate"]["state"] == "done", 1200, every=2.0)
    assert len(set(killed)) == 3, "another job each time"
    assert "replayed with the recorded results" in project.r2v("verify-results", f"results/{NAME}").stdout
    assert "jobs that served" in project.r2v("providers", "ledger").stdout
