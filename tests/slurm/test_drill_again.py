"""Drills of later commands on a real Slurm with stand-in work: recomputation, status, logs and cost."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.slurm.project import JOBS, NAME, Project

PLACE = "outputs/policy/desk_noisy/preference"


def shims(project: Project, *programs: str) -> dict[str, str]:
    """Return an environment in which each call of these programs leaves a line in `calls`."""
    folder = project.folder / "shims"
    folder.mkdir()
    for program in programs:
        shim = folder / program
        shim.write_text(f'#!/bin/sh\necho {program} >> {project.folder}/calls\nexec {shutil.which(program)} "$@"\n')
        shim.chmod(0o755)
    return {"PATH": f"{folder}:{project.env['PATH']}"}


def calls(project: Project) -> list[str]:
    path = project.folder / "calls"
    return path.read_text().split() if path.exists() else []


def router_alone(project: Project) -> None:
    """Submit the changed router without the jobs behind it."""
    project.r2v("run_all", "desk", "--overrides", "router.l2=2.0", "--without", "evaluate", "ablations")


def test_the_chain_makes_the_same_data_as_the_pipeline_here(project: Project, base: Project) -> None:
    seen = set()
    project.run("bash", "run_all.sh", "desk")
    while project.cluster.squeue():
        time.sleep(0.5)
        code, jobs = project.status()
        assert code in (0, 10), jobs  # a job that accounting does not know yet is no failure
        seen |= {job["state"] for job in jobs.values()}
    code, jobs = project.status()
    assert code == 0 and {job["state"] for job in jobs.values()} == {"done"}
    assert {"running", "waiting", "done"} <= seen
    assert project.hashes() == base.hashes()
    states = project.cluster.states()
    assert {states[job_id] for job_id in project.ids().values()} == {"COMPLETED"}


def test_twice_is_ten_skipped_and_no_sbatch(made: Project) -> None:
    done = made.r2v("run_all", "desk", env=shims(made, "sbatch"))
    assert calls(made) == [] and made.cluster.squeue() == []
    assert "10 skipped" in done.stdout + done.stderr


@pytest.mark.whole
def test_an_altered_file_makes_it_and_all_behind_it_stale(made: Project) -> None:
    path = made.folder / PLACE / "value.txt"
    before = path.read_text()
    path.write_text(before.replace(before[0], "z", 1))
    done = made.r2v("run_all", "desk", "--dry-run")
    told = done.stdout + done.stderr
    assert path.resolve().name in told and len(re.findall(r"\bstale\b", told)) >= 5
    line = next(line for line in told.splitlines() if "value.txt" in line)
    assert len(set(re.findall(r"\b[0-9a-f]{12}\b", line))) == 2, line
    made.r2v("run_all", "desk")
    assert set(made.ids()) == {"preference", "router_features", "router", "evaluate", "ablations"}
    made.drained()
    assert made.status()[0] == 0 and path.read_text() == before


@pytest.mark.whole
def test_resume_long_after_names_no_forgotten_job(made: Project) -> None:
    with made.cluster.settings(MinJobAge=2):
        made.behave(preference={"crash": "the answer is 43"})
        made.r2v("run_all", "desk", "--overrides", "training.preference.lr=3e-4")
        made.cluster.wait(lambda: made.attempts("preference")[-1].get("failure"))
        old = made.ids()
        made.cluster.wait(
            lambda: "Invalid job" in made.cluster.run("scontrol", "show", "job", old["preference"], check=False).stderr,
            every=1,
        )
        made.behave(preference={"hold": "go"})
        said = made.r2v("resume", NAME, "--from", "preference", "--overrides", "training.preference.batch_size=2")
        waits = "\n".join(made.cluster.squeue("%i %E"))
        now = made.ids()
        assert old["preference"] not in waits.replace(now["preference"], "") and now["preference"] in waits
        assert set(now) == set(old) and "collect" not in now
        assert re.search(r"training\.preference\.batch_size.*8.*2", said.stdout + said.stderr)
        (made.folder / "go").touch()
        made.drained()
    assert made.status()[0] == 0
    assert made.artifact(PLACE)["summary"]["batch_size"] == 2


@pytest.mark.parametrize("harm", ["delete", "alter"])
def test_a_stage_alone_checks_its_inputs_first(made: Project, harm: str) -> None:
    manifest = made.folder / PLACE / "artifact.json"
    manifest.write_text(manifest.read_text()[:40]) if harm == "alter" else manifest.unlink()
    job = made.sbatch("sbatch scripts/slurm/06_generate_router_features.sh desk")
    made.cluster.wait(lambda: made.cluster.states()[job] == "FAILED")
    assert made.cluster.job(job)["ExitCode"] == "3:0"
    log = next(made.folder.glob(f"logs/*_{job}.out")).read_text()
    assert "preference" in log and "began" not in log


@pytest.mark.whole
def test_without_accounting_the_status_is_right_and_says_so(made: Project) -> None:
    with made.cluster.accounting_down():
        made.behave(evaluate={"hold": "go"})
        made.r2v("run_all", "desk", "--overrides", "router.l2=2.0", "--without", "ablations")
        made.cluster.wait(lambda: made.status()[1]["evaluate"]["state"] == "running")
        told = made.r2v("status", NAME, check=False)
        assert told.returncode == 10 and "accounting down" in told.stdout
        (made.folder / "go").touch()
        made.drained()
        code, jobs = made.status()
        assert code == 0 and {job["state"] for job in jobs.values()} == {"done", "up to date"}


def test_a_changed_router_runs_what_rests_on_it_and_status_tells_reasons_progress_and_memory(made: Project) -> None:
    made.behave(router={"steps": 8, "seconds": 0.1, "hold": "go"})
    with made.cluster.drained():
        made.r2v("run_all", "desk", "--overrides", "router.l2=2.0")
        assert set(made.ids()) == {"router", "evaluate", "ablations"}
        made.cluster.wait(lambda: "drained" in made.status()[1]["router"]["words"])  # once Slurm has looked at it
        code, jobs = made.status()
        assert code == 10 and jobs["router"]["state"] == "queued"
        assert jobs["evaluate"]["state"] == "waiting" and "router" in jobs["evaluate"]["words"]
    made.cluster.wait(lambda: made.status()[1]["router"]["state"] == "running")
    progress = made.cluster.wait(lambda: made.status()[1]["router"]["progress"])
    assert progress["total"] == 8
    (made.folder / "go").touch()
    made.drained()
    code, jobs = made.status()
    assert code == 0 and jobs["router"]["peak_bytes"] > 10 << 20
    told = made.r2v("status", NAME, env=shims(made, "squeue", "sacct", "scontrol", "sinfo", "sbatch")).stdout
    assert all(job in told for job in JOBS)
    assert sorted(calls(made)) in (["squeue"], ["sacct", "squeue"]), "one squeue, at most one sacct"


def test_what_failed_before_and_was_done_since_is_past(made: Project) -> None:
    made.behave(router={"crash": "the answer is 43"})
    router_alone(made)
    by_hand = made.sbatch("sbatch scripts/slurm/07_train_router.sh desk --overrides router.l2=5.0")
    made.cluster.wait(lambda: made.attempts("router")[-1].get("failure"))
    made.cluster.wait(lambda: made.cluster.states()[by_hand] == "FAILED")
    made.behave()
    made.r2v("run_all", "desk", "--overrides", "router.l2=3.0", "--without", "evaluate", "ablations")
    made.sbatch("sbatch scripts/slurm/07_train_router.sh desk --overrides router.l2=5.0")
    made.drained()
    assert made.status()[0] == 0, made.r2v("status", check=False).stdout


@pytest.mark.whole
def test_logs_of_a_requeued_job_hold_both_starts(made: Project) -> None:
    made.behave(router={"steps": 20, "seconds": 0.1})
    router_alone(made)
    made.cluster.wait(lambda: "step 3" in made.log("router"))
    follower = made.start("logs", NAME, "router", "-f")
    made.cluster.run("scontrol", "requeue", made.ids()["router"])
    made.drained()
    said = made.r2v("logs", NAME, "router").stdout
    assert said.count("router began") == 2 and "router ended" in said
    followed, _ = follower.communicate(timeout=60)
    assert "router ended" in followed


def test_the_cost_is_what_sacct_says(made: Project) -> None:
    made.behave(router={"hold": "go", "usage": "wrong"})
    router_alone(made)
    made.cluster.wait(lambda: made.log("router").count("began"))
    time.sleep(1.5)  # accounting counts whole seconds
    (made.folder / "go").touch()
    made.cluster.wait(lambda: made.attempts("router")[-1].get("failure"))
    made.behave(router={"steps": 20, "seconds": 0.1})
    made.r2v("resume", NAME)
    made.drained()
    ids = [one["id"] for job in made.chain()["jobs"].values() for one in job["attempts"]]

    def billed() -> float:
        rows = made.cluster.run("sacct", "-nXPj", ",".join(ids), "-o", "State,ElapsedRaw,AllocTRES").stdout
        lives = [row.split("|") for row in rows.splitlines()]
        ended = all(life[0] in ("COMPLETED", "FAILED") for life in lives) and len(lives) == len(ids)
        seconds = [int(life[1]) * int((re.search(r"gres/gpu=(\d+)", life[2]) or [0, 0])[1]) for life in lives]
        return sum(seconds) / 3600 if ended else 0.0

    truth = made.cluster.wait(billed, every=0.5)
    (told,) = json.loads(made.r2v("cost", NAME, "--json").stdout)["chains"]
    assert abs(told["gpu_hours"] - truth) * 3600 <= 1
    assert 0 < told["wasted"] < told["gpu_hours"]


def test_status_before_anything_was_submitted_says_what_to_type(project: Project) -> None:
    done = project.r2v("status", check=False)
    assert "run_all" in done.stdout + done.stderr and done.returncode == 2


LINES = (
    'sbatch scripts/slurm/01_collect.sh desk 4 "1"',
    'sbatch scripts/slurm/02_perturb.sh desk "1 2 3"',
    "sbatch scripts/slurm/03_train_policy.sh desk noisy bc",
    "sbatch scripts/slurm/03_train_policy.sh desk noisy all",
    "sbatch scripts/slurm/04_train_verifier.sh desk",
    "sbatch scripts/slurm/05_generate_candidates.sh desk 5",
    "sbatch scripts/slurm/03_train_policy.sh desk noisy preference",
    "sbatch scripts/slurm/06_generate_router_features.sh desk",
    "sbatch scripts/slurm/07_train_router.sh desk",
    'sbatch scripts/slurm/08_evaluate.sh desk noisy "1 2 3 4 5" "r2v slm_only llm_only entropy_router"',
    'sbatch scripts/slurm/09_ablations.sh desk "1 2 3"',
)


def test_every_sbatch_line_of_the_seed_works_alone(made: Project) -> None:
    before: tuple[str, ...] = ()
    ids = []
    for line in LINES:
        ids.append(made.sbatch(line.replace("sbatch", f"sbatch {' '.join(before)}", 1)))
        before = (f"--dependency=afterany:{ids[-1]}",)
    made.drained()
    states = made.cluster.states()
    logs = {one: "".join(path.read_text() for path in made.folder.glob(f"logs/*_{one}.out")) for one in ids}
    assert [
        (line, states[one], logs[one]) for line, one in zip(LINES, ids, strict=True) if states[one] != "COMPLETED"
    ] == []
    (told,) = json.loads(made.r2v("status", NAME, "--json", check=False).stdout)["chains"]
    assert {job["id"] for job in told["jobs"]} >= set(ids)
    for script, one in (("collect", ids[0]), ("evaluate", ids[-2])):
        assert (made.folder / f"logs/{script}_{one}.out").exists()


def test_the_seeds_own_questions_are_answered(made: Project) -> None:
    made.behave(router={"steps": 20, "seconds": 0.1})  # Slurm measures memory once a second
    job = made.sbatch("sbatch scripts/slurm/07_train_router.sh desk --overrides router.l2=2.0")
    typed = 'squeue -u $(id -un) -o "%.8i %.20j %.8T %.10M %.6D %R"'
    shown = made.cluster.run("bash", "-c", typed).stdout  # in a shell whose profile sets no filters
    assert "train_router" in shown
    made.drained()
    question = ("sacct", "-j", job, "--format=JobID,Elapsed,MaxRSS,MaxVMSize,AllocCPUS")
    table = made.cluster.wait(
        lambda: (said := made.cluster.run(*question).stdout) and re.search(r"\d+K", said) and said
    )
    assert re.search(rf"{job}\.batc\S*\s+\S+\s+\d+K", table)


def test_mrp_runs_the_whole_pipeline_in_one_job(project: Project) -> None:
    config = (project.folder / "configs/desk/noisy.yaml").read_text()
    (project.folder / "configs/mrp.yaml").write_text(f"prefix: mrp\n{config}")
    job = project.sbatch("sbatch scripts/slurm/mrp.sh")
    project.drained()
    assert project.cluster.states()[job] == "COMPLETED"
    assert Path(project.folder / f"logs/mrp_{job}.out").exists()
    assert project.artifact("results/mrp")["stage"].startswith("r2v.stages.evaluate")
