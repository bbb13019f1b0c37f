"""Drills on a real Slurm with stand-in work: three chains of one checkout share the stages before their candidates; a
job waits in the queue for an artifact that a process outside of any chain is making."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from tests.slurm.project import Project

JOBS = ("collect", "perturb", "bc", "verifier", "candidates")
LEFT_OUT = ("preference", "router_features", "router", "evaluate", "ablations")


def latest(project: Project, name: str) -> dict[str, str]:
    chain = json.loads((project.folder / f"outputs/.chains/{name}/chain.json").read_text())
    return {job: entry["attempts"][-1]["id"] for job, entry in chain["jobs"].items() if entry["attempts"]}


def test_one_bc_job_for_three_chains_and_no_gpu_held_while_they_wait(project: Project) -> None:
    project.behave(bc={"hold": "go"})
    for at, name in enumerate(("x1", "x2", "x3")):
        own = ["--overrides", f"prefix={name}", f"candidates.num_samples={5 + at}"]
        project.r2v("run_all", "desk", "--without", *LEFT_OUT, *own)
    ids = {name: latest(project, name) for name in ("x1", "x2", "x3")}
    assert {name: list(known) for name, known in ids.items()} == {
        "x1": [*JOBS],
        "x2": ["candidates"],
        "x3": ["candidates"],
    }
    bc = ids["x1"]["bc"]
    log = project.folder / f"logs/bc_x1_{bc}.out"
    project.cluster.wait(lambda: log.exists() and "bc began" in log.read_text())  # earlier, a signal is lost
    project.cluster.run(
        "scancel", "--signal=KILL", "--batch", bc
    )  # healed by its owner's sentinel or by a waiter's look
    project.cluster.wait(lambda: project.r2v("status", "x2", check=False) and latest(project, "x1")["bc"] != bc)
    (project.folder / "go").touch()
    project.drained()
    form = "JobID,JobName,State,Start,End,AllocTRES"
    lines = project.cluster.run("sacct", "-XnP", "-o", form).stdout.splitlines()
    told = {line.split("|")[0]: line.split("|") for line in lines}
    ours = {row[1]: row for row in told.values() if row[1].endswith(("_x1", "_x2", "_x3")) and row[2] == "COMPLETED"}
    assert [name for name in ours if name.startswith("bc_")] == ["bc_x1"]
    ended = ours["bc_x1"][4]
    for name in ("x1", "x2", "x3"):
        assert ours[f"candidates_{name}"][3] >= ended, "its GPU was given when there was work for it"
    on_gpus = {row[1] for row in told.values() if "gres/gpu" in row[5] and row[1].endswith(("_x2", "_x3"))}
    assert on_gpus == {"candidates_x2", "candidates_x3"}
    places = {(project.folder / f"outputs/{name}/policy/bc").resolve() for name in ("x1", "x2", "x3")}
    assert len(places) == 1 and next(iter(places)).parent.name == ".artifacts"
    for name in ("x1", "x2", "x3"):
        assert project.r2v("status", name, check=False).returncode == 0


def test_two_chains_on_a_base_that_nobody_hashed_share_what_does_not_read_it(project: Project) -> None:
    """Neither chain knows the content that the other's bc will read. The first job hashes the base, and the second
    finds its artifact."""
    base = project.folder / "models" / "base"
    base.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (base / name).write_text("{}")
    for name in ("y1", "y2"):
        own = ["--overrides", f"prefix={name}", "policy.model_name=models/base", "training.lr=1e-4"]
        project.r2v("run_all", "desk", "--without", "verifier", "candidates", *LEFT_OUT, *own)
    assert {name: list(latest(project, name)) for name in ("y1", "y2")} == {
        "y1": ["collect", "perturb", "bc"],
        "y2": ["bc"],
    }
    project.drained()
    for name in ("y1", "y2"):
        assert project.r2v("status", name, check=False).returncode == 0
    assert len({(project.folder / f"outputs/{name}/policy/bc").resolve() for name in ("y1", "y2")}) == 1
    assert "".join(path.read_text() for path in project.folder.glob("logs/bc_*.out")).count("bc began") == 1


def minutes_to_start(job: dict[str, str]) -> float:
    """Return the minutes from now until Slurm may start a waiting job."""
    start = job["StartTime"]
    return 0.0 if start == "Unknown" else (datetime.fromisoformat(start) - datetime.now()).total_seconds() / 60


@pytest.mark.whole
def test_what_a_stranger_is_making_is_waited_for_without_a_gpu(made: Project) -> None:
    words = ("--overrides", "training.preference.lr=3e-4")
    line = f"sbatch --gres=gpu:a100:1 scripts/slurm/03_train_policy.sh desk noisy preference {' '.join(words)}"
    made.behave(preference={"hold": "go"})
    store, cluster = made.folder / "outputs/.artifacts", made.cluster
    stranger = made.start("train_policy", "--stage", "preference", "--config", "configs/desk/noisy.yaml", *words)
    cluster.wait(lambda: list(store.glob("preference-*.lease/*")))
    job = made.sbatch(line)
    put_back = {"Restarts": "1", "JobState": "PENDING"}
    cluster.wait(lambda: put_back.items() <= cluster.job(job).items())
    cluster.wait(lambda: minutes_to_start(cluster.job(job)) > 5)
    stranger.kill()
    stranger.communicate()
    later = "starttime=now+3"  # slurmd launches nothing in the second of its requeue: "already killed"
    cluster.run("scontrol", "update", f"jobid={job}", later)
    cluster.wait(lambda: list(store.glob(f"preference-*.lease/*,{job},*")), 120)

    behind = made.sbatch(line)
    cluster.wait(lambda: {**put_back, "Reason": "Dependency"}.items() <= cluster.job(behind).items())
    assert cluster.job(behind)["Dependency"].startswith(f"afterany:{job}(")
    (made.folder / "go").touch()
    made.drained(200)
    assert [made.record(id_, "exit.json")["rc"] for id_ in (job, behind)] == [0, 0]
    logs = "".join(path.read_text() for path in made.folder.glob("logs/*.out"))
    assert logs.count("preference ended at") == 1 and f"until=afterany:{job}" in logs
