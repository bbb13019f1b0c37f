"""A drill of helpers on a real Slurm: an array beside an evaluation, requeued and killed by the cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import warm
from tests.pipeline.test_helping import content
from tests.slurm.cluster import Cluster
from tests.slurm.project import ROOT, Project
from tests.trust import MICRO
from tests.trust.alter import hard_copy

CHAIN = "micro"
BESIDE = Path(__file__).parent / "helped"


def configuration() -> str:
    """Return the configuration of the micro run with a longer evaluation in small blocks."""
    text = MICRO.read_text().replace("  num_tasks: 4\n  seeds: [1]\n", "  num_tasks: 40\n  seeds: [1, 2, 3, 4]\n", 1)
    assert "num_tasks: 40" in text
    return f"{text}rollout: {{episodes_per_block: 8}}\n"


def put_into(project: Path, micro_run: Path) -> None:
    """Move a copy of the micro run, without its evaluation and ablations, into the project."""
    copy = hard_copy(micro_run, project.parent / f"{project.name}-copy")
    for room in ("data", "outputs", "results"):
        shutil.rmtree(project / room, ignore_errors=True)
        shutil.move(copy / room, project / room)


def queued(slurm: Cluster) -> dict[str, tuple[str, str]]:
    """Return the helpers in the queue by their id: state and node."""
    rows = [line.split("|") for line in slurm.run("squeue", "-h", "--array", "-o", "%i|%T|%N|%k").stdout.splitlines()]
    return {id_: (state, node) for id_, state, node, comment in rows if comment.startswith("r2v-helpers:")}


def plays(folder: Path) -> int:
    """Return the number of finished episodes of the running evaluation."""
    attempts = [path for path in folder.glob("outputs/.episodes/evaluate-*") if not (path / "published.json").exists()]
    return sum(file.read_bytes().count(b"\n") for path in attempts for file in path.glob("*.jsonl"))


def seconds_of_starts(slurm: Cluster, array: str) -> list[int]:
    """Return the seconds of every start of every task of an array, from accounting."""
    rows = slurm.run("sacct", "-nXP", "--duplicates", "-j", array, "-o", "ElapsedRaw").stdout.split()
    return [int(row) for row in rows]


@pytest.mark.whole
def test_helpers_that_are_preempted_cancelled_or_lose_their_node_change_nothing(
    slurm: Cluster, micro_run: Path, tmp_path: Path
) -> None:
    alone = hard_copy(micro_run, tmp_path / "alone")
    (alone / "config.yaml").write_text(configuration())
    done = warm.run(alone, "evaluate", "--config", "config.yaml")
    assert done.returncode == 0, done.stderr

    project = Project(slurm, tmp_path / "project", config=configuration(), fake_stages=False)
    project.env["PYTHONPATH"] = f"{BESIDE}:{ROOT}"
    put_into(project.folder, micro_run)
    project.header("08_evaluate.sh", helpers="3")
    project.r2v("run_all", "desk", "--without", "ablations")
    record = project.folder / "outputs/.chains" / CHAIN / "chain.json"
    (job,) = [one["attempts"][-1]["id"] for one in json.loads(record.read_text())["jobs"].values() if one["attempts"]]

    slurm.wait(lambda: [state for state, _ in queued(slurm).values()] == ["RUNNING"] * 3, 300)
    preempted, cancelled, _ = helpers = sorted(queued(slurm))
    logs = [project.folder / f"logs/help_evaluate_{CHAIN}_{id_}.out" for id_ in helpers]
    slurm.wait(lambda: all(log.exists() and "helper started" in log.read_text() for log in logs), 300)
    slurm.wait(lambda: plays(project.folder), 300)
    slurm.run("scontrol", "requeue", preempted)
    slurm.run("scancel", cancelled)
    slurm.wait(lambda: cancelled not in queued(slurm))
    before = plays(project.folder)
    slurm.wait(lambda: plays(project.folder) > before, 300)
    node = slurm.job(job)["NodeList"]
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=drill")
    slurm.wait(lambda: slurm.job(job)["Restarts"] == "1")
    slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)  # it may have resumed by itself
    project.drained(900)

    told = json.loads(record.read_text())["jobs"]["evaluate"]["attempts"]
    assert [attempt["id"] for attempt in told] == [job], "the chain's job is the one that was submitted"
    assert content((project.folder / "results/micro").resolve()) == content((alone / "results/micro").resolve())
    status = json.loads(project.r2v("status", CHAIN, "--json").stdout)
    assert {one["state"] for one in status["chains"][0]["jobs"]} <= {"done", "up to date"}
    (array,) = {id_.partition("_")[0] for id_ in helpers}
    slurm.wait(lambda: "RUNNING" not in slurm.run("sacct", "-nXP", "--duplicates", "-o", "State").stdout, 300)
    costs = json.loads(project.r2v("cost", CHAIN, "--json").stdout)["chains"][0]["attempts"]
    helping = {cost["id"]: cost for cost in costs if cost["job"] == "evaluate helpers"}  # with the array of a restart
    accounted = {id_: seconds_of_starts(slurm, id_) for id_ in helping}
    assert sum(accounted[array]) > 0, "its three tasks played"
    assert {id_: cost["starts"] for id_, cost in helping.items()} == {
        id_: sum(seconds > 0 for seconds in starts) for id_, starts in accounted.items()
    }
    assert {id_: round(cost["hours"] * 3600) for id_, cost in helping.items()} == {
        id_: sum(starts) for id_, starts in accounted.items()
    }
    assert {cost["gpu_hours"] for cost in helping.values()} == {0}, "those of the bundled student ask for no GPU"
