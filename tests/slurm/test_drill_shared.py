"""Drill on a real Slurm with stand-in work: three chains of one checkout share what stands before their candidates."""

from __future__ import annotations

import json

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
    project.cluster.wait(
        lambda: project.cluster.states().get(bc) == "RUNNING" and "RUNNING" in project.cluster.job(bc)["JobState"]
    )
    project.run("scancel", "--signal=KILL", "--batch", bc)  # healed by its owner's sentinel or by a waiter's look
    project.cluster.wait(lambda: project.r2v("status", "x2", check=False) and latest(project, "x1")["bc"] != bc)
    (project.folder / "go").touch()
    project.drained()
    form = "JobID,JobName,State,Start,End,AllocTRES"
    lines = project.run("sacct", "-XnP", "-o", form).stdout.splitlines()
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
