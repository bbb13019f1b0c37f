"""Drill on a real Slurm: a sweep of a command and one over a stage, killed and resumed, equal the table of a single
slot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.experiments.programs import PROGRAM
from tests.slurm.project import Project

pytestmark = pytest.mark.whole

COMMAND = """\
name: points
mode: training
base_config: base.yaml
command: sh program.sh {config}
metric: score
sweep: {x: [1, 2, 3, 4, 5, 6]}
"""
STAGE = """\
name: rates
mode: training
stage: train_verifier
base_config: configs/desk/noisy.yaml
sweep: {training.verifier.lr: [1.0e-4, 2.0e-4, 3.0e-4]}
metric: value
"""


def record(project: Project) -> dict[str, Any]:
    """Return the record of the newest experiment."""
    folders = sorted(
        (project.folder / "outputs/experiments").glob("*/experiment.json"), key=lambda path: path.stat().st_mtime
    )
    found: dict[str, Any] = json.loads(folders[-1].read_text()) if folders else {"runs": []}
    return found


def run(project: Project, spec: str, *words: str) -> dict[str, Any]:
    project.r2v("experiments", "run", "--exp", spec, *words)
    return record(project)


def killed(project: Project, spec: str, *words: str) -> None:
    """Start a sweep, and kill it as soon as one of its runs is in the queue."""
    process = project.start("experiments", "run", "--exp", spec, *words)
    project.cluster.wait(lambda: bool(project.cluster.squeue()))
    process.kill()
    process.wait()


def figures(project: Project, found: dict[str, Any]) -> list[tuple[Any, float]]:
    return [
        (one["values"], json.loads((project.folder / one["run_dir"] / "metrics.json").read_text())["score"])
        for one in found["runs"]
    ]


def test_one_slot_two_and_the_queue_give_one_table_and_a_killed_watcher_loses_nothing(project: Project) -> None:
    (project.folder / "base.yaml").write_text("x: 0\nseconds: 0.2\n")
    (project.folder / "program.sh").write_text(PROGRAM)
    (project.folder / "points.yaml").write_text(COMMAND)
    tables = [figures(project, run(project, "points.yaml", "--fresh", *more)) for more in ((), ("--slots", "2"))]
    killed(project, "points.yaml", "--fresh", "--slurm", "3")
    tables.append(figures(project, run(project, "points.yaml", "--fresh", "--slurm", "3", "--resume")))
    assert tables == [[({"x": x}, float(x)) for x in range(1, 7)]] * 3
    began = [line.split()[1] for line in (project.folder / "ledger").read_text().splitlines() if line[:5] == "begin"]
    assert sorted(began) == sorted([str(x) for x in range(1, 7)] * 3), "none twice"

    def completed() -> int:
        names = project.cluster.run("sacct", "-XnP", "-o", "JobName,State").stdout.split()
        return sum("points_" in name and name.endswith("|COMPLETED") for name in names)

    project.cluster.wait(lambda: completed() >= 6)  # accounting is seconds late
    assert completed() == 6
    assert project.r2v("experiments", "compare", "points").returncode == 0


def test_points_over_a_stage_are_chains_that_share_one_collection(project: Project) -> None:
    (project.folder / "rates.yaml").write_text(STAGE)
    killed(project, "rates.yaml", "--slurm")
    found = run(project, "rates.yaml", "--slurm", "--resume")
    assert [one["status"] for one in found["runs"]] == ["completed"] * 3
    project.drained()
    names = [
        line.partition("|") for line in project.cluster.run("sacct", "-XnP", "-o", "JobName,State").stdout.splitlines()
    ]
    done = [name for name, _, state in names if "rates_" in name and state == "COMPLETED"]
    assert sum(name.startswith("collect_") for name in done) == 1, "one job, three waiters"
    assert sum(name.startswith("verifier_") for name in done) == 3
    made = [json.loads((project.folder / one["run_dir"] / "artifacts.json").read_text()) for one in found["runs"]]
    assert len({one["collect"] for one in made}) == 1 and len({one["verifier"] for one in made}) == 3
