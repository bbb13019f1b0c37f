"""Drills of failure, on a real Slurm with stand-in work: failures that heal by themselves and those that wait for a
person.

Each drill changes the configuration of `preference` in a finished project, which makes it and the four jobs behind it
stale; where those do not matter they are left out.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.project import NAME, Project

CHANGE = ("--overrides", "training.preference.lr=3e-4")
TAIL = ("preference", "router_features", "router", "evaluate", "ablations")
PLACE = "outputs/policy/desk_noisy/preference"


def submit(project: Project, *options: str, **behaviour: dict[str, Any]) -> dict[str, str]:
    """Submit the five jobs; return their ids."""
    project.behave(**behaviour)
    project.r2v("run_all", "desk", *options, *CHANGE)
    return project.ids()


def submit_one(project: Project, *options: str, **behaviour: Any) -> str:
    """Submit preference alone; return its id."""
    (job_id,) = submit(project, "--without", *TAIL[1:], *options, preference=behaviour).values()
    return job_id


def submitted_at(project: Project, ids: dict[str, str]) -> dict[str, str]:
    return {job: project.cluster.job(job_id)["SubmitTime"] for job, job_id in ids.items()}


def completed(project: Project) -> bool:
    code, jobs = project.status()
    return code == 0 and {job["state"] for job in jobs.values()} <= {"done", "up to date"}


def settled(project: Project) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the jobs of `r2v status` when nothing of the chain is active."""
    told: tuple[int, dict[str, dict[str, Any]]] = project.cluster.wait(
        lambda: (now := project.status())[0] != 10 and now
    )
    return told


def uninterrupted(project: Project, folder: Path, **behaviour: Any) -> str:
    """Return the value that preference makes without a disturbance."""
    other = project.copy(folder)
    other.behave(preference=behaviour)
    other.r2v("train_policy", "--stage", "preference", "--config", "configs/desk/noisy.yaml", *CHANGE, "--force")
    return str(other.artifact(PLACE)["summary"]["value"])


def edit_meanwhile(project: Project) -> None:
    """Save the scripts of a running chain in other encodings, and delete one."""
    scripts = project.folder / "scripts/slurm"
    with (scripts / "09_ablations.sh").open("ab") as file:
        file.write("# für später\n".encode("latin1"))
    (scripts / "08_evaluate.sh").write_bytes((scripts / "08_evaluate.sh").read_bytes().replace(b"\n", b"\r\n"))
    (scripts / "05_generate_candidates.sh").unlink()


def child_of(project: Project, word: str) -> int:
    """Return the process of a running stage: the first fork of its runner, with the runner's command line."""

    def found() -> int:
        parents: dict[int, int] = {}
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                words = (proc / "cmdline").read_bytes().decode().split("\0")
                runs = words[1:3] == ["-m", "r2v.slurm.job.runner"] and word in words
                if runs and (proc / "cwd").readlink() == project.folder.resolve():
                    parents[int(proc.name)] = int((proc / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        return min((number for number, parent in parents.items() if parent in parents), default=0)

    return int(project.cluster.wait(found))


@pytest.mark.whole
def test_out_of_host_memory_comes_back_with_more_and_nobody_loses_his_place(made: Project) -> None:
    made.header("03_train_policy.sh", mem="200M")
    ids = submit(made, preference={"eat": 160})
    since = submitted_at(made, ids)
    made.drained()
    first, second = made.attempts("preference")
    assert (first["resources"]["mem"], second["resources"]["mem"]) == ("200M", "300M")
    assert second["reason"] == "host_oom"
    after = made.ids()
    for job in TAIL[1:]:
        assert after[job] == ids[job] and made.cluster.job(ids[job])["SubmitTime"] == since[job]
    assert completed(made)
    assert "host_oom" in made.r2v("explain", NAME, "preference", check=False).stdout


@pytest.mark.whole
def test_a_child_of_two_that_fail_at_once_waits_for_both_new_ones(made: Project) -> None:
    made.behave(bc={"cuda_oom_above": 8}, verifier={"cuda_oom_above": 8, "steps": 10, "seconds": 0.1})
    made.r2v("run_all", "desk", "--without", *TAIL, "--overrides", "training.bc.lr=1e-3", "training.verifier.lr=1e-3")
    ids = made.ids()
    assert set(ids) == {"bc", "verifier", "candidates"}
    made.drained()
    assert [len(made.attempts(job)) for job in ids] == [2, 2, 1]
    ended = [made.cluster.job(made.ids()[job])["EndTime"] for job in ("bc", "verifier")]
    assert made.ids()["candidates"] == ids["candidates"]
    assert made.cluster.job(ids["candidates"])["StartTime"] >= max(ended)
    assert completed(made)


def test_out_of_CUDA_memory_halves_the_micro_batch_at_an_equal_product(made: Project) -> None:
    submit_one(made, cuda_oom_above=4)
    made.drained()
    first, second = made.attempts("preference")
    assert second["reason"] == "cuda_oom" and any("batch_size=4" in one for one in second["overrides"])
    summary = made.artifact(PLACE)["summary"]
    assert (summary["batch_size"], summary["effective_batch"]) == (4, 16)
    assert made.record(first["id"], "error.json")["type"] == "torch.OutOfMemoryError"
    assert completed(made)


def test_an_error_in_the_code_is_tried_once_and_downstream_waits(made: Project) -> None:
    ids = submit(made, preference={"crash": "the answer is 43"})
    made.cluster.wait(lambda: made.attempts("preference")[-1].get("failure"))
    assert len(made.attempts("preference")) == 1
    code, jobs = settled(made)
    assert code == 1 and jobs["preference"]["state"] == "failed" and "the answer is 43" in jobs["preference"]["words"]
    assert {jobs[job]["state"] for job in TAIL[1:]} == {"blocked"}
    stages = {line.split()[0] for line in made.cluster.squeue("%i %k") if "~heal" not in line}
    assert stages == {ids[job] for job in TAIL[1:]}
    told = made.r2v("explain", NAME, check=False).stdout
    assert "the answer is 43" in told and "r2v resume" in told
    errors = made.r2v("logs", NAME, "preference", "--errors", check=False).stdout
    assert "ValueError: the answer is 43" in errors


@pytest.mark.whole
def test_after_the_code_is_mended_resume_takes_the_waiting_jobs_along(made: Project) -> None:
    ids = submit(made, "--without", "evaluate", "ablations", preference={"crash": "the answer is 43"})
    made.cluster.wait(lambda: made.attempts("preference")[-1].get("failure"))
    made.behave()
    made.r2v("resume", NAME)
    assert {**made.ids(), "preference": ""} == {**ids, "preference": ""}
    made.drained()
    assert completed(made)


@pytest.mark.whole
def test_run_all_typed_again_does_what_resume_does(made: Project) -> None:
    fewer = ("--without", "router", "evaluate", "ablations")
    ids = submit(made, *fewer, preference={"crash": "the answer is 43"})
    made.cluster.wait(lambda: made.attempts("preference")[-1].get("failure"))
    made.behave()
    made.r2v("run_all", "desk", *fewer, *CHANGE)
    now = made.ids()
    assert now["router_features"] == ids["router_features"] and now["preference"] != ids["preference"]
    made.drained()
    assert completed(made)


def test_at_the_time_limit_it_goes_on_from_its_checkpoint_to_the_same_end(made: Project, tmp_path: Path) -> None:
    job = submit_one(made, steps=20, seconds=0.1)
    made.cluster.wait(lambda: "step 3" in made.log("preference"))
    made.cluster.run("scancel", "--signal=USR2", "--batch", job)
    made.drained()
    log = made.log("preference")
    assert made.ids() == {"preference": job} and made.record(job, "start.json")["restart"] == 1
    resumed = int(log.split("goes on from step ")[1].split()[0])
    assert resumed >= 3 and log.count("preference step 2\n") == 1
    assert completed(made)
    assert made.artifact(PLACE)["summary"]["value"] == uninterrupted(made, tmp_path / "other", steps=20)


def test_a_preempted_job_comes_back_and_that_is_not_counted(made: Project) -> None:
    job = submit_one(made, steps=20, seconds=0.1)
    made.cluster.wait(lambda: "step 3" in made.log("preference"))
    made.cluster.sbatch(
        "-p",
        "urgent",
        "-N",
        "2",
        "--ntasks-per-node=64",
        "--mem=1G",
        "-w",
        "g[1-2]",
        "-o",
        "/dev/null",
        "--wrap=sleep 0.1",
    )
    made.cluster.wait(lambda: made.cluster.job(job)["Restarts"] == "1")
    made.drained()
    assert [one["id"] for one in made.attempts("preference")] == [job]
    assert completed(made)
    rows = made.cluster.wait(
        lambda: (
            (said := made.cluster.run("sacct", "-nXPDj", job, "-o", "State").stdout.split())
            and said[-1] == "COMPLETED"
            and said
        )
    )
    assert rows == ["PREEMPTED", "COMPLETED"]


def test_a_job_whose_node_fails_is_run_again(made: Project) -> None:
    job = submit_one(made, steps=20, seconds=0.1)
    made.cluster.wait(lambda: "step 3" in made.log("preference"))
    node = made.cluster.job(job)["NodeList"]
    made.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=drill")
    made.drained()
    assert completed(made) and made.log("preference").count("preference step 2\n") == 1


def test_a_GPU_fault_is_answered_elsewhere_by_the_dying_job_and_by_its_sentinel(made: Project) -> None:
    """Both jobs meet the fault on g1; the second kills its runner too, so that its sentinel alone can heal it."""
    fault = {"hold": "go", "faulty_node": "g1"}
    behaviour = {"preference": fault, "router_features": {**fault, "abrupt": True}}
    submit(made, "--without", "router", "evaluate", "ablations", **behaviour)
    edit_meanwhile(made)
    (made.folder / "go").touch()
    made.drained()
    for job in ("preference", "router_features"):
        first, second = (made.record(one["id"], "start.json") for one in made.attempts(job))
        assert (first["resources"]["nodes"], second["resources"]["nodes"]) == ("g1", "g2"), job
        assert made.attempts(job)[1]["reason"] == "machine"
    own = [made.record(made.attempts(job)[0]["id"], "exit.json") for job in ("preference", "router_features")]
    assert own[0]["kind"] == "machine" and own[1] == {}, "who healed it"
    remembered = json.loads((made.folder / "outputs/.chains/bad_nodes.json").read_text())["nodes"]
    assert list(remembered) == ["g1"] and "ECC" in remembered["g1"]["line"]
    assert completed(made)


def test_a_cancelled_chain_does_not_heal(made: Project) -> None:
    submit_one(made, hold="never")
    made.cluster.wait(lambda: "began" in made.log("preference"))
    edit_meanwhile(made)
    made.r2v("cancel", NAME)
    made.drained()
    before = made.chain()
    made.r2v("heal", NAME, "preference")
    assert made.cluster.squeue() == [] and made.chain()["jobs"] == before["jobs"]
    code, jobs = settled(made)
    assert code == 1 and jobs["preference"]["state"] == "cancelled"


@pytest.mark.whole
def test_a_waiting_job_that_was_cancelled_stays_so_when_its_parent_heals(made: Project) -> None:
    ids = submit(made, "--without", "router", "evaluate", "ablations", preference={"hold": "go", "cuda_oom_above": 4})
    made.cluster.wait(lambda: "began" in made.log("preference"))
    made.cluster.run("scancel", ids["router_features"])
    made.cluster.wait(lambda: made.attempts("router_features")[-1].get("failure"))
    (made.folder / "go").touch()
    made.drained()
    assert made.ids()["router_features"] == ids["router_features"]
    code, jobs = settled(made)
    assert code == 1 and jobs["preference"]["state"] == "done" and jobs["router_features"]["state"] == "cancelled"


def test_killed_in_the_middle_of_its_output_it_leaves_nothing_that_looks_done(made: Project) -> None:
    submit_one(made, slow_write=60)
    made.cluster.wait(lambda: "half written" in made.log("preference"))
    made.behave()
    os.kill(child_of(made, "train_policy"), signal.SIGKILL)
    made.cluster.wait(lambda: len(made.attempts("preference")) == 2)
    first = made.record(made.attempts("preference")[0]["id"], "exit.json")
    assert first["signal"] == signal.SIGKILL
    made.drained()
    assert completed(made)
    text = (made.folder / PLACE / "value.txt").read_text()
    assert text == made.artifact(PLACE)["summary"]["value"] + "\n"


def test_without_its_sentinel_a_failure_is_answered_by_the_next_look_and_resume_continues(made: Project) -> None:
    submit_one(made, hold="go", crash="too bad")
    made.cluster.wait(lambda: "began" in made.log("preference"))
    made.cluster.run("scancel", made.attempts("preference")[-1]["sentinel"])
    (made.folder / "go").touch()
    code, jobs = made.cluster.wait(lambda: (told := made.status())[1]["preference"]["state"] == "failed" and told)
    assert code == 1 and "not tried again" in jobs["preference"]["words"]
    made.behave()
    made.r2v("resume", NAME)
    made.drained()
    assert completed(made)


@pytest.mark.whole
def test_healing_ends_at_its_cap(made: Project) -> None:
    submit_one(made, "--max-attempts", "2", cuda_oom_above=0)
    made.cluster.wait(lambda: made.attempts("preference")[-1].get("failure") and len(made.attempts("preference")) > 1)
    assert len(made.attempts("preference")) == 2
    assert "2" in made.attempts("preference")[-1]["failure"]["action"]
    assert settled(made)[0] == 1


@pytest.mark.whole
def test_healing_ends_at_the_cap_on_GPU_hours(made: Project) -> None:
    submit_one(made, "--max-gpu-hours", "0.0001", hold="go", cuda_oom_above=0)
    made.cluster.wait(lambda: "began" in made.log("preference"))
    time.sleep(2)  # GPU time is counted in whole seconds
    (made.folder / "go").touch()
    told = made.cluster.wait(lambda: made.attempts("preference")[-1].get("failure"))
    assert len(made.attempts("preference")) == 1 and "GPU-hours" in told["action"]
    assert settled(made)[0] == 1


@pytest.mark.whole
def test_where_the_site_kills_the_waiting_ours_keep_their_place(made: Project) -> None:
    with made.cluster.settings(DependencyParameters="kill_invalid_depend"):
        ids = submit(made, "--without", "router", "evaluate", "ablations", preference={"cuda_oom_above": 4})
        plain = made.cluster.sbatch(f"--dependency=afterok:{ids['preference']}", "-o", "/dev/null", "--wrap=true")
        made.drained()
        assert made.cluster.states()[plain] == "CANCELLED"
    assert completed(made)
    assert made.ids()["router_features"] == ids["router_features"]


@pytest.mark.whole
def test_without_requeue_the_sentinel_brings_it_back(made: Project) -> None:
    with made.cluster.settings(JobRequeue=0):
        job = submit_one(made, steps=20, seconds=0.1)
        made.cluster.run("scontrol", "update", f"jobid={job}", "requeue=0")  # as a site's plugin does
        made.cluster.wait(lambda: "step 3" in made.log("preference"))
        made.cluster.run("scancel", "--signal=USR2", "--batch", job)
        made.drained()
    assert len(made.attempts("preference")) == 2
    assert "goes on from step" in made.log("preference") and "preference step 2\n" not in made.log("preference")
    assert completed(made)


def test_without_accounting_it_heals_all_the_same(made: Project) -> None:
    with made.cluster.accounting_down():
        submit_one(made, cuda_oom_above=4)
        made.drained()
        assert completed(made)
        assert len(made.attempts("preference")) == 2


@pytest.mark.whole
def test_a_lost_worker_is_a_failure_although_its_parent_lives(made: Project) -> None:
    submit(made, "--max-attempts", "1", preference={"shards": 3, "kill_shard": 1})
    made.cluster.wait(lambda: made.attempts("preference")[-1].get("failure"))
    assert not (made.folder / PLACE / "artifact.json").exists()
    code, jobs = made.cluster.wait(lambda: (told := made.status())[1]["preference"]["state"] == "failed" and told)
    assert code == 1 and jobs["router_features"]["state"] == "blocked"
    assert "2 of 3 shards" in json.dumps(jobs["preference"])
