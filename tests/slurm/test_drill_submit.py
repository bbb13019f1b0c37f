"""Drills of submission, on a real Slurm whose nodes take no jobs: the content of the queue."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.slurm.chain.chain import WHOLE
from tests import warm
from tests.slurm.cluster import Cluster
from tests.slurm.project import EDGES, JOBS, NAME, ROOT, Project, ours_alive


@pytest.fixture(autouse=True)
def nothing_starts(slurm: Cluster) -> Iterator[None]:
    with slurm.drained():
        yield
        slurm.run("scancel", "--me")


def queued(project: Project) -> Counter[str]:
    """Return the number of jobs in the queue, by chain and job: desk_noisy/bc, desk_noisy/bc~heal."""
    return Counter(line.removeprefix("r2v:").rpartition("/")[0] for line in project.cluster.squeue("%k"))


def whole_chain() -> Counter[str]:
    return Counter([*(f"{NAME}/{job}" for job in JOBS), f"{NAME}/{WHOLE}~heal"])


def test_submits_ten_jobs_with_their_sentinels_and_leaves_no_process(project: Project) -> None:
    said = project.run("bash", "run_all.sh", "desk").stdout
    assert queued(project) == whole_chain()
    ids = project.ids()
    for job in JOBS:
        assert re.search(rf"\b{job}\b.*\b{ids[job]}\b", said), said
    assert ours_alive(project.folder) == []


def test_names_and_logs_are_what_squeue_of_the_seed_shows(project: Project) -> None:
    project.r2v("run_all", "desk")
    names = {line.split()[1] for line in project.cluster.squeue("%i %j")}
    assert {f"{job}_{NAME}" for job in JOBS} < names
    shown = project.cluster.job(project.ids()["bc"])
    assert shown["StdOut"] == f"{project.folder}/logs/bc_{NAME}_{project.ids()['bc']}.out"
    assert shown["TimeLimit"] == "2-00:00:00" and "gres:gpu:a100:2" in shown["TresPerNode"]


def test_a_dry_run_tells_all_and_submits_nothing(project: Project) -> None:
    done = project.r2v("run_all", "desk", "--dry-run")
    assert project.cluster.squeue() == [] and not project.chain()
    assert done.stdout.count("sbatch ") == 11
    assert "--gres=gpu:a100:2" in done.stdout and re.search(r"GPU-hours", done.stdout)


@pytest.mark.whole
def test_a_dry_run_names_the_job_that_would_be_rejected(project: Project) -> None:
    project.header("08_evaluate.sh", mem="9000G")
    done = project.r2v("run_all", "desk", "--dry-run", check=False)
    assert done.returncode == 2
    assert "evaluate" in (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("override", "hint"),
    [("training.lrr=1", "lr"), ("training.lr=soon", "training.lr"), ("evaluation.budgets=[2.0]", "evaluation.budgets")],
)
def test_a_bad_override_is_refused_before_anything_is_submitted(project: Project, override: str, hint: str) -> None:
    done = project.r2v("run_all", "desk", "--overrides", override, check=False)
    assert done.returncode == 2 and hint in done.stderr and len(done.stderr.splitlines()) == 1
    assert project.cluster.squeue() == []


def test_the_queue_waits_as_the_seeds_table_says(project: Project) -> None:
    project.r2v("run_all", "desk")
    ids = project.ids()
    job_of = {job_id: job for job, job_id in ids.items()}
    waits = dict(line.split(" ") for line in project.cluster.squeue("%i %E"))
    for job, needs in EDGES.items():
        assert sorted(job_of[one] for one in re.findall(r"afterok:(\d+)", waits[ids[job]])) == sorted(needs), job
        sentinel = project.attempts(job)[-1]["sentinel"]
        assert set(re.findall(r"afternotok:(\d+)", waits[sentinel])) == set(ids.values())
    graph = json.loads(project.r2v("graph", NAME, "--format", "json", check=False).stdout)
    drawn = {(edge["from"], edge["to"]) for edge in graph["edges"]}
    assert drawn == {(need, job) for job, needs in EDGES.items() for need in needs}


def test_the_jobs_of_a_submitter_killed_halfway_are_adopted(project: Project) -> None:
    process = project.start("run_all", "desk")
    project.cluster.wait(lambda: sum("~heal" not in name for name in queued(project)) >= 4, every=0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {line.split()[0] for line in project.cluster.squeue("%i %k") if "~heal" not in line}
    assert 4 <= len(before) < 10
    project.r2v("run_all", "desk")
    assert queued(project) == whole_chain()
    assert before <= set(project.ids().values())


@pytest.mark.whole
def test_the_jobs_of_another_checkout_are_not_ours(project: Project, tmp_path: Path) -> None:
    project.r2v("run_all", "desk")
    other = Project(project.cluster, tmp_path / "other")
    other.r2v("run_all", "desk")
    assert len(other.ids()) == 10 and not set(other.ids().values()) & set(project.ids().values())
    other.r2v("cancel", NAME)
    project.cluster.wait(lambda: queued(project) == whole_chain())
    assert project.status()[0] == 10


@pytest.mark.whole
def test_of_two_at_once_one_submits_and_the_other_finds_it_in_the_queue_or_is_told_who_holds_it(
    project: Project,
) -> None:
    both = [project.start("run_all", "desk") for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    codes = [process.returncode for process in both]
    (first,) = (at for at, text in enumerate(said) if re.search(r"\b10 submitted, 0 in the queue before\b", text))
    assert codes[first] == 0, said
    found = {0: r"\b0 submitted, 10 in the queue before\b", 6: rf"held by pid {warm.fork_of(both[first])} on "}
    assert codes[1 - first] in found and re.search(found[codes[1 - first]], said[1 - first]), (codes, said)
    assert queued(project) == whole_chain()


@pytest.mark.whole
def test_a_second_run_of_the_same_adds_nothing(project: Project) -> None:
    project.r2v("run_all", "desk")
    ids = project.ids()
    project.r2v("run_all", "desk")
    assert project.ids() == ids and queued(project) == whole_chain()


@pytest.mark.whole
def test_an_edited_header_is_taken_by_the_job_that_waits_and_the_others_keep_their_ids(project: Project) -> None:
    project.r2v("run_all", "desk")
    before, changed = project.ids(), "router_features"
    assert "edited" not in project.r2v("status", check=False).stdout
    project.header("06_generate_router_features.sh", mem="40G")
    told = project.r2v("status", check=False).stdout
    assert f"headers were edited since: {changed} mem=48G -> 40G; the jobs that wait take them by `r2v resume" in told
    project.r2v("resume", NAME)
    now = project.ids()
    assert {job for job in JOBS if now[job] != before[job]} == {changed} and queued(project) == whole_chain()
    assert now[changed] in project.cluster.job(now["router"])["Dependency"]
    assert before[changed] not in project.cluster.job(now["router"])["Dependency"]


@pytest.mark.whole
def test_another_configuration_is_refused_while_jobs_of_the_first_are_there(project: Project) -> None:
    project.r2v("run_all", "desk")
    done = project.r2v("run_all", "desk", "--overrides", "training.lr=1e-4", check=False)
    assert done.returncode == 6 and project.ids()["bc"] in done.stderr and "cancel" in done.stderr
    assert queued(project) == whole_chain()


def test_cancel_takes_the_sentinels_with_it(project: Project) -> None:
    project.r2v("run_all", "desk")
    project.r2v("cancel", NAME)
    project.cluster.wait(lambda: not project.cluster.squeue())
    assert project.chain()["cancelled"]
    project.r2v("heal", NAME, "collect")
    assert project.cluster.squeue() == []


def test_a_limit_on_jobs_reached_halfway_keeps_what_was_taken(project: Project) -> None:
    with project.cluster.submit_limit(7):
        done = project.r2v("run_all", "desk", check=False)
    assert done.returncode == 5 and "MaxSubmit" in done.stderr, done.stderr
    taken = {line.split()[0] for line in project.cluster.squeue("%i %k")}
    assert len(taken) == 7
    project.r2v("run_all", "desk")
    assert queued(project) == whole_chain()
    assert taken <= {line.split()[0] for line in project.cluster.squeue("%i %k")}


def test_no_slurm_on_the_PATH_is_one_line_with_the_remedy(project: Project) -> None:
    done = project.r2v("run_all", "desk", check=False, env={"PATH": str(project.folder)})
    assert done.returncode == 5 and "--here" in done.stderr and len(done.stderr.splitlines()) == 1


def test_an_unknown_partition_or_GPU_is_refused_before_anything_is_submitted(project: Project) -> None:
    for name, value in (("partition", "nope"), ("gres", "gpu:b300:1")):
        project.header("08_evaluate.sh", **{name: value})
        done = project.r2v("run_all", "desk", check=False)
        assert done.returncode in (2, 5) and "evaluate" in done.stderr, done.stderr
        assert project.cluster.squeue() == []
        shutil.copy(ROOT / "scripts/slurm/08_evaluate.sh", project.folder / "scripts/slurm/08_evaluate.sh")


def test_a_wrong_directive_is_named_by_file_and_line(project: Project) -> None:
    path = project.folder / "scripts/slurm/07_train_router.sh"
    path.write_text(path.read_text().replace("--partition=", "--partitoin="))
    done = project.r2v("run_all", "desk", check=False)
    line = next(at for at, text in enumerate(path.read_text().splitlines(), start=1) if "partitoin" in text)
    assert done.returncode == 2 and f"07_train_router.sh:{line} asks" in done.stderr
    assert "unrecognized option '--partitoin" in done.stderr
    assert project.cluster.squeue() == []


def test_a_disk_that_refuses_is_told_and_nothing_is_submitted(project: Project) -> None:
    done = project.run("bash", "-c", "ulimit -f 0; exec bash run_all.sh desk", check=False)
    assert done.returncode == 5 and "cannot write" in done.stderr, done.stderr
    assert project.cluster.squeue() == []


@pytest.mark.whole
def test_a_benchmark_that_is_not_installed_is_refused_but_its_chain_is_printed(project: Project) -> None:
    shutil.copytree(ROOT / "configs/webarena", project.folder / "configs/webarena")
    done = project.r2v("run_all", "webarena", check=False)
    assert done.returncode == 2 and "webarena" in done.stderr and project.cluster.squeue() == []
    assert "evaluate" in project.r2v("run_all", "webarena", "--dry-run", check=False).stdout


def test_the_submitter_loads_nothing_heavy(project: Project) -> None:
    heavy = ("torch", "transformers", "trl", "peft", "anthropic", "openai")
    code = (
        "import sys; from r2v.cli.main import main; code = main(['run_all', 'desk']); "
        f"sys.exit(f'loaded {{found}}' if (found := [name for name in {heavy} if name in sys.modules]) else code)"
    )
    done = project.run("python", "-c", code, check=False)
    assert done.returncode == 0, done.stderr
    assert isinstance(done, subprocess.CompletedProcess)
