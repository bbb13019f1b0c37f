"""`run_all`, `resume` and `cancel` against a fake Slurm: their calls, the order of these, and the files they write.

The drills tests/slurm/test_drill_*.py run them on a real Slurm.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from r2v.cli import main as cli
from r2v.config import Config, load, to_yaml
from r2v.errors import EnvironmentFault, InputError, LeaseConflict, UsageError
from r2v.pipeline.graph import selection
from r2v.slurm import run_all
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Chain
from r2v.slurm.client import client
from r2v.slurm.client.command import NoSlurm
from r2v.slurm.job.runner import with_allowed_keys
from r2v.slurm.views.chain_status import ACTIVE
from tests.pipeline.test_run import NAMES, SEED_TABLE
from tests.slurm.faked import FAKE, Faked
from tests.slurm.faked import faked as faked
from tests.trust.kinds import unlisted

ROOT = Path(__file__).resolve().parents[2]
NAME = "desk_noisy"
EVERY = len(selection(Config())[0]) + 1
"""Jobs of a whole chain in the queue: one for each stage, and the sentinel."""


@pytest.fixture
def checkout(faked: Faked) -> Faked:
    """Make a checkout with the scripts and configurations, beside the fake Slurm."""
    for name in ("scripts/slurm", "configs"):
        shutil.copytree(ROOT / name, faked.root / name)
    with (faked.root / "configs/desk/noisy.yaml").open("a") as file:
        file.write("policy: {device: cuda}\n")  # as in the headers; by itself the bundled student asks for CPUs
    faked.answer()
    return faked


def chain(checkout: Faked) -> chains.Chain:
    return chains.read(checkout.root, NAME)


def rows(checkout: Faked) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((checkout.folder / "jobs.json").read_text())
    return found


def put(checkout: Faked, queue: list[dict[str, str]]) -> None:
    (checkout.folder / "jobs.json").write_text(json.dumps(queue))


def calls(checkout: Faked, *words: str) -> list[list[str]]:
    """Return the calls that begin with these words; `sbatch` alone leaves out the `--test-only` calls."""
    log = checkout.folder / "calls.log"
    made = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [
        call
        for call in made
        if call[: len(words)] == list(words) and not (words == ("sbatch",) and "--test-only" in call)
    ]


def updates(checkout: Faked, id_: str) -> list[list[str]]:
    """Return the changes to one waiting job. A real queue forgets dependencies that are done, this one does not."""
    return [call for call in calls(checkout, "scontrol", "update") if f"jobid={id_}" in call]


def ids(checkout: Faked) -> dict[str, str]:
    return {name: job.latest.id for name, job in chain(checkout).jobs.items() if job.latest}


def test_ten_jobs_each_behind_what_it_needs_and_each_watched(
    checkout: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all.submit(benchmark="desk") == 0
    made, queue = chain(checkout), {row["JobID"]: row for row in rows(checkout)}
    assert SEED_TABLE.items() <= {name: job.needs for name, job in made.jobs.items()}.items()
    assert len(queue) == EVERY and len(calls(checkout, "sbatch")) == EVERY
    (sentinel,) = {job.latest.sentinel for job in made.jobs.values() if job.latest}
    assert sentinel is not None and updates(checkout, sentinel) == [
        [
            "scontrol",
            "update",
            f"jobid={sentinel}",
            f"dependency={'?'.join(f'afternotok:{id_}' for id_ in ids(checkout).values())}",
        ]
    ]
    for name, job in made.jobs.items():
        assert job.latest is not None and len(job.attempts) == 1
        needed = ":".join(ids(checkout)[need] for need in job.needs)
        assert queue[job.latest.id]["Dependency"] == (f"afterok:{needed}" if needed else "(null)")
        assert queue[job.latest.id]["Comment"] == chains.comment(NAME, name, made.config_sha, submitter=made.submitter)
        assert job.latest.sentinel == sentinel
        assert job.latest.reason == "first" and job.latest.resources["time"]
    out = capsys.readouterr().out
    assert f"{NAME}: 10 submitted, 0 in the queue before, 0 skipped" in out
    assert all(f"{name} " in out and ids(checkout)[name] in out for name in NAMES)


@pytest.mark.parametrize(("start", "needs"), [("bc", ("bc",)), ("model", ())])
def test_hierarchical_training_joins_the_chain_where_it_is_asked_for(
    start: str, needs: tuple[str, ...], checkout: Faked
) -> None:
    assert run_all.submit(benchmark="desk", overrides=["hierarchical.enabled=true", f"hierarchical.start={start}"]) == 0
    made = chain(checkout).jobs
    assert list(made) == [*NAMES, "hierarchical"] and made["hierarchical"].needs == needs
    latest = made["hierarchical"].latest
    assert latest is not None and latest.resources["gres"] == "gpu:a100:2"


def test_the_scripts_of_a_chain_ask_what_the_headers_say(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    folder = chains.folder(checkout.root, NAME) / "submitit" / ids(checkout)["bc"]
    script = next(folder.glob("*_submission.sh")).read_text()
    for line in (
        "--gres=gpu:a100:2",
        "--time=48:00:00",
        "--signal=B:USR2@120",
        "--requeue",
        "--open-mode=append",
        "--kill-on-invalid-dep=no",
        f"--job-name=bc_{NAME}",
        "--output=logs/%x_%j.out",
    ):
        assert f"\n#SBATCH {line}\n" in script, line
    assert script.index("source scripts/slurm/env.sh") < script.index("set -euo pipefail") < script.index("\nexec ")
    assert "srun" not in script and "--error" not in script and "wckey" not in script
    assert f"-m r2v.slurm.job.runner --of {NAME}/bc.1 train_policy --stage bc --config " in script
    sentinel = next(call for call in calls(checkout, "sbatch") if f"--job-name=heal_{NAME}" in call)
    assert {"--kill-on-invalid-dep=yes", "--time=5", "--cpus-per-task=1", "--partition=cpu"} <= set(sentinel)
    assert not [word for word in sentinel if "gpu" in word]


def test_a_second_time_everything_is_there(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    before, made = ids(checkout), chain(checkout)
    run_all.submit(benchmark="desk")
    assert ids(checkout) == before and len(calls(checkout, "sbatch")) == EVERY
    assert chain(checkout).jobs == made.jobs
    assert unlisted(checkout.root) == []


def test_what_a_killed_submitter_could_not_write_is_known_by_its_comment(checkout: Faked) -> None:
    """The worst moment for a kill: four jobs are in the queue, three recorded, and there is no sentinel."""
    run_all.submit(benchmark="desk")
    made, before = chain(checkout), ids(checkout)
    four = [*NAMES[:4]]
    kept = {before[name] for name in four}
    put(checkout, [row for row in rows(checkout) if row["JobID"] in kept])
    chains.write(
        checkout.root,
        replace(
            made,
            jobs={name: job if name in NAMES[:3] else replace(job, attempts=()) for name, job in made.jobs.items()},
        ),
    )
    done = len(calls(checkout, "sbatch"))
    run_all.submit(benchmark="desk")
    assert {name: ids(checkout)[name] for name in four} == {name: before[name] for name in four}
    assert len(calls(checkout, "sbatch")) - done == 1 + 6
    comments = [row["Comment"] for row in rows(checkout)]
    assert len(comments) == len(set(comments)) == EVERY


def test_a_lost_sentinel_is_replaced(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    lost = chain(checkout).jobs["bc"].latest.sentinel  # type: ignore[union-attr]
    put(checkout, [row for row in rows(checkout) if row["JobID"] != lost])
    run_all.submit(benchmark="desk")
    attempt = chain(checkout).jobs["bc"].latest
    assert attempt is not None and attempt.sentinel != lost and len(chain(checkout).jobs["bc"].attempts) == 1


def test_another_configuration_waits_for_the_first_to_end(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    with pytest.raises(
        LeaseConflict, match=f"{ids(checkout)['collect']}.* of another configuration .*r2v cancel {NAME}"
    ):
        run_all.submit(benchmark="desk", overrides=["training.lr=1e-4"])
    run_all.cancel(name=NAME)
    put(checkout, [])
    run_all.submit(benchmark="desk", overrides=["training.lr=1e-4"])
    assert all(len(job.attempts) == 1 for job in chain(checkout).jobs.values())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"benchmark": "dask"}, "did you mean desk?"),
        ({"benchmark": None}, "run_all of what?"),
        ({"benchmark": "desk", "overrides": ["training.lrr=1"]}, "did you mean training.lr"),
        ({"benchmark": "desk", "start": "rooter"}, "did you mean router?"),
        ({"benchmark": "desk", "max_attempts": 0}, "at least 1"),
        ({"benchmark": "desk", "max_gpu_hours": 0.0}, "above 0"),
        ({"benchmark": "webarena"}, "webarena"),
        ({"benchmark": "all"}, "configs/webarena/noisy.yaml: .*; and configs/swebench/noisy.yaml: "),
        ({"benchmark": "desk", "overrides": ["teacher.provider=openai"]}, "teacher."),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_submitted(
    options: dict[str, Any], told: str, checkout: Faked
) -> None:
    with pytest.raises(UsageError, match=told):
        run_all.submit(**options)
    assert calls(checkout, "sbatch") == [] and chains.names(checkout.root) == []


def test_a_header_that_this_cluster_cannot_serve_is_named(checkout: Faked) -> None:
    path = checkout.root / "scripts/slurm/08_evaluate.sh"
    path.write_text(path.read_text().replace("--partition=gpu", "--partition=gpux"))
    with pytest.raises(UsageError, match=r"08_evaluate.sh .* evaluate: invalid partition .*nothing was submitted"):
        run_all.submit(benchmark="desk")
    assert calls(checkout, "sbatch") == []
    with pytest.raises(UsageError, match="would refuse evaluate"):
        run_all.submit(benchmark="desk", dry_run=True)


def test_a_job_without_gpu_is_refused_by_the_header_that_rules_it(checkout: Faked) -> None:
    path = checkout.root / "scripts/slurm/02_perturb.sh"
    path.write_text(path.read_text().replace("--partition=cpu", "--partition=cpux"))
    with pytest.raises(UsageError, match=r"^scripts/slurm/02_perturb.sh asks .* give collect: invalid partition"):
        run_all.submit(benchmark="desk", overrides=["policy.device=cpu"])


def test_an_edited_header_is_said_and_taken_by_what_waits(checkout: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    run_all.submit(benchmark="desk")
    first, path = ids(checkout), checkout.root / "scripts/slurm/06_generate_router_features.sh"
    assert cli.main(["status"]) == ACTIVE and "edited" not in capsys.readouterr().out
    path.write_text(path.read_text().replace("--mem=48G", "--mem=60G"))
    assert cli.main(["status"]) == ACTIVE
    line = (
        "  ! headers were edited since: router_features mem=48G -> 60G; the jobs that wait take them by "
        f"`r2v resume {NAME}`"
    )
    assert line in capsys.readouterr().out.splitlines()
    assert cli.main(["resume"]) == 0
    now = ids(checkout)
    assert {name for name in NAMES if now[name] != first[name]} == {"router_features"}
    assert ["scancel", "--quiet", first["router_features"]] in calls(checkout, "scancel")
    latest = chain(checkout).jobs["router_features"].latest
    assert latest is not None and latest.resources["mem"] == "60G"
    assert now["router_features"] in updates(checkout, now["router"])[-1][3]
    assert cli.main(["status"]) == ACTIVE and "edited" not in capsys.readouterr().out


def test_a_size_that_has_failed_is_not_asked_for_again(
    checkout: Faked, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from r2v.slurm.healing.reconcile import by_sentinel as heal

    script = checkout.root / "scripts/slurm/03_train_policy.sh"
    script.write_text(script.read_text().replace("--mem=60G", "--mem=8G"))
    first = failed_bc(checkout, "host_oom", "killed at its memory limit", 137, attempts=1)
    assert heal(NAME, "bc") == 0
    failure = chain(checkout).jobs["bc"].attempts[-1].failure
    assert failure is not None and failure.action.startswith(
        "not tried again: 1 attempts of the 1 that it may have; the next submission asks for mem=12G; blocked: "
    )
    assert f"chain={NAME} stage=bc job={first['bc']} action=not tried again" in caplog.text
    capsys.readouterr()
    assert cli.main(["explain"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"  go on    r2v resume {NAME} --from bc",
        "           it asks for mem=12G then; for another size, first: r2v cluster set train_policy.mem=SIZE",
    ]
    assert cli.main(["cluster", "set", "train_policy.mem=10G"]) == 0
    assert cli.main(["explain"]) == 0 and "it asks for mem=10G then" in capsys.readouterr().out
    assert cli.main(["cluster", "set", "train_policy.mem=8G"]) == 0
    run_all.submit(benchmark="desk")
    latest = chain(checkout).jobs["bc"].latest
    assert latest is not None and latest.resources["mem"] == "12G"


def test_a_cancelled_chain_goes_on_as_explain_says_and_without_a_job_is_no_longer_cancelled(
    checkout: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all.submit(benchmark="desk")
    run_all.cancel(name=NAME)
    put(checkout, [])
    for id_ in ids(checkout).values():
        checkout.accounted(id_, "CANCELLED by 1000", NodeList="None assigned")
    (checkout.folder / "accounting.json").write_text(json.dumps(checkout.accounts))
    for words in ([], ["router"]):
        assert cli.main(["explain", *words]) == 0
        assert capsys.readouterr().out.splitlines()[-2].split(maxsplit=2)[2].startswith(f"r2v resume {NAME}")
    with pytest.raises(InputError, match=f"--config outputs/.chains/{NAME}/config.yaml`"):
        run_all.resume(name=NAME, start="router")
    with pytest.raises(InputError, match="--config configs/desk/noisy.yaml`"):
        run_all.submit(benchmark="desk", start="router")
    assert run_all.submit(benchmark="desk", without=["ablations"]) == 0
    assert cli.main(["status"]) == ACTIVE
    assert "cancelled" not in capsys.readouterr().out and "ablations" in chain(checkout).history


def test_a_dry_run_prints_the_chain_of_a_benchmark_that_is_not_there(
    checkout: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all.submit(benchmark="all", dry_run=True) == 0
    out = capsys.readouterr().out
    assert "webarena_noisy" in out and "swebench_noisy" in out and out.count("=$(sbatch ") == 20
    assert '"--dependency=afterok:$bc:$verifier"' in out and "to start at" in out and "at most 292 GPU-hours" in out
    assert calls(checkout, "sbatch") == [] and chains.names(checkout.root) == []


def test_the_lines_of_a_dry_run_run_as_they_stand_and_run_all_adopts_their_jobs(
    checkout: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(checkout.root / "logs")
    run_all.submit(benchmark="desk", dry_run=True, overrides=["seed=3"])
    told = capsys.readouterr().out
    typed = [line for line in told.splitlines() if "sbatch --" in line or "mkdir" in line]
    assert len(typed) == 1 + 11 and typed[0] == "  mkdir -p logs"
    (checkout.root / "pasted.sh").write_text("\n".join(typed))
    done = subprocess.run(
        ["bash", "-eu", "pasted.sh"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (checkout.root / "logs").is_dir()
    pasted = {row["JobID"]: row for row in rows(checkout)}
    run_all.submit(benchmark="desk", overrides=["seed=3"])
    assert set(ids(checkout).values()) | {chain(checkout).jobs["bc"].latest.sentinel} == set(pasted)  # type: ignore[union-attr]
    for name, job in chain(checkout).jobs.items():
        needed = ":".join(ids(checkout)[need] for need in job.needs)
        assert pasted[ids(checkout)[name]]["Dependency"] == (f"afterok:{needed}" if needed else "(null)")
    words = [word for call in calls(checkout, "sbatch") for word in call]
    wrapped = next(word for word in words if word.startswith("--wrap=") and " --stage bc" in word)
    assert wrapped == (
        "--wrap=exec bash scripts/slurm/03_train_policy.sh --stage bc --config configs/desk/noisy.yaml "
        "--overrides seed=3"
    )


def test_what_a_header_says_in_its_comment_and_of_errors_is_kept(checkout: Faked) -> None:
    path = checkout.root / "scripts/slurm/03_train_policy.sh"
    path.write_text(path.read_text().replace("#SBATCH --nodes=1", "#SBATCH --comment=grant42 --error=logs/%x_%j.err"))
    run_all.submit(benchmark="desk")
    made, bc = chain(checkout), ids(checkout)["bc"]
    row = next(row for row in rows(checkout) if row["JobID"] == bc)
    assert row["Comment"] == f"grant42 {chains.comment(NAME, 'bc', made.config_sha, submitter=made.submitter)}"
    script = next((chains.folder(checkout.root, NAME) / "submitit" / bc).glob("*_submission.sh")).read_text()
    assert "\n#SBATCH --error=logs/%x_%j.err\n" in script and "--output=logs/%x_%j.out" in script
    run_all.submit(benchmark="desk")
    assert ids(checkout)["bc"] == bc and len(rows(checkout)) == EVERY
    assert not [word for call in updates(checkout, bc) for word in call if word.startswith("comment=")]
    run_all.cancel(name=NAME)
    assert rows(checkout) == []


def test_without_slurm_only_the_dry_run_works(
    checkout: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoSlurm, match="--here"):
        run_all.submit(benchmark="desk")
    assert not (checkout.root / "outputs").exists()
    assert run_all.submit(benchmark="desk", dry_run=True) == 0
    assert "no header was tested" in capsys.readouterr().out


def test_where_no_controller_answers_no_header_is_blamed(checkout: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    """The messages are those of commands without a slurm.conf, and of a controller that is down."""
    for words in (
        "sinfo: error: fetch_config: DNS SRV lookup failed\nsinfo: fatal: Could not establish a configuration source",
        "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
    ):
        checkout.down("sinfo", words)
        assert run_all.submit(benchmark="desk", dry_run=True, overrides=["seed=3"]) == 0
        out = capsys.readouterr().out
        assert "no Slurm controller answers here, so no header was tested" in out and "REJECTED" not in out
        assert out.count(" --config configs/desk/noisy.yaml --overrides seed=3')\n") == EVERY - 1


def test_a_full_queue_halfway_keeps_what_was_taken(
    checkout: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is Slurm's own, at a user's MaxSubmitJobs."""
    shim = tmp_path / "bin" / "sbatch"
    shim.parent.mkdir()
    shim.write_text(f"""#!/bin/bash
[[ "$*" == *--test-only* ]] || echo >> {tmp_path}/count
if [ -e {tmp_path}/full ] && [ "$(wc -l < {tmp_path}/count)" -gt 7 ]; then
  echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)" >&2
  exit 1
fi
exec {FAKE}/sbatch "$@"
""")
    shim.chmod(0o755)
    (tmp_path / "full").touch()
    monkeypatch.setenv("PATH", f"{shim.parent}:{FAKE}:/usr/bin:/bin")
    with pytest.raises(EnvironmentFault, match=r"6 of 10 jobs are in the queue, router_features was refused .*MaxSub"):
        run_all.submit(benchmark="desk")
    taken = ids(checkout)
    assert len(rows(checkout)) == 7 and list(taken) == NAMES[:6]
    (tmp_path / "full").unlink()
    run_all.submit(benchmark="desk")
    assert {name: ids(checkout)[name] for name in taken} == taken
    comments = [row["Comment"] for row in rows(checkout)]
    assert len(comments) == len(set(comments)) == EVERY


def test_cancel_ends_all_in_one_call_and_nothing_heals_after_it(checkout: Faked) -> None:
    from r2v.slurm.healing.reconcile import by_sentinel as heal

    run_all.submit(benchmark="desk")
    queue = {row["JobID"] for row in rows(checkout)}
    assert run_all.cancel(name=NAME) == 0
    assert [set(call[2:]) for call in calls(checkout, "scancel")] == [queue]
    assert chain(checkout).cancelled and rows(checkout) == []
    before = chain(checkout)
    checkout.failed(ids(checkout)["bc"], "killed", "killed", rc=137)
    done = len(calls(checkout, "sbatch"))
    assert heal(NAME, "bc") == 0
    assert chain(checkout) == before and len(calls(checkout, "sbatch")) == done
    run_all.submit(benchmark="desk")
    assert chain(checkout).cancelled is None
    assert {job.latest.reason for job in chain(checkout).jobs.values() if job.latest} == {"rerun"}


def failed_bc(checkout: Faked, kind: str, line: str, rc: int, attempts: int = 2) -> dict[str, str]:
    """Submit the whole chain: collect and perturb are done, bc has failed, the rest waits."""
    run_all.submit(benchmark="desk", max_attempts=attempts)
    first = ids(checkout)
    for name in ("collect", "perturb"):
        checkout.done(first[name], name)
    checkout.failed(first["bc"], kind, line, rc)
    gone = {first[name] for name in ("collect", "perturb", "bc")} | {str(chain(checkout).jobs["bc"].latest.sentinel)}  # type: ignore[union-attr]
    put(checkout, [row for row in rows(checkout) if row["JobID"] not in gone])
    return first


def test_healing_submits_again_and_retargets_what_waits(checkout: Faked) -> None:
    from r2v.slurm.healing.reconcile import by_sentinel as heal

    first = failed_bc(checkout, "host_oom", "killed at its memory limit", 137)
    assert heal(NAME, "bc") == 0
    attempts, now = chain(checkout).jobs["bc"].attempts, ids(checkout)
    assert [one.reason for one in attempts] == ["first", "host_oom"] and attempts[1].resources["mem"] == "64G"
    assert attempts[0].failure is not None
    assert attempts[0].failure.action == "submitted again, mem 60G -> 64G"
    assert {name: now[name] for name in NAMES if name != "bc"} == {name: first[name] for name in NAMES if name != "bc"}
    set_ = {call[2]: call[3:] for call in calls(checkout, "scontrol", "update")}
    waits = f"dependency=afterok:{now['bc']}:{first['verifier']}"
    assert waits in set_[f"jobid={first['candidates']}"]
    assert not [word for words in set_.values() for word in words if first["perturb"] in word.split("=")[1].split(":")]
    submitted = len(calls(checkout, "sbatch"))
    assert heal(NAME, "bc") == 0 and len(calls(checkout, "sbatch")) == submitted, "it waits now: nothing to do"


def test_a_sentinel_killed_halfway_does_not_submit_twice(checkout: Faked) -> None:
    """Slurm restarts it where its node failed; the jobs submitted before that are in the queue, and no more."""
    from r2v.slurm.healing.reconcile import by_sentinel as heal

    first = failed_bc(checkout, "host_oom", "killed at its memory limit", 137)
    heal(NAME, "bc")
    again, submitted, healed = ids(checkout)["bc"], len(calls(checkout, "sbatch")), chain(checkout)
    failed, latest = healed.jobs["bc"].attempts
    decided = healed.with_job("bc", attempts=(failed,), planned=replace(latest, id="", sentinel=None))
    chains.write(checkout.root, decided)
    heal(NAME, "bc")
    assert ids(checkout)["bc"] == again and len(calls(checkout, "sbatch")) == submitted
    latest = chain(checkout).jobs["bc"].latest
    assert latest is not None and (latest.reason, latest.resources["mem"]) == ("host_oom", "64G")
    updates = calls(checkout, "scontrol", "update")
    assert sum(f"jobid={first['candidates']}" in call for call in updates) == 2, "the waiting are pointed at it again"


def test_a_job_resubmitted_names_no_job_that_has_ended(checkout: Faked) -> None:
    from r2v.slurm.healing.reconcile import by_sentinel as heal

    failed_bc(checkout, "killed", "killed", 137)
    heal(NAME, "bc")
    queue = {row["JobID"]: row for row in rows(checkout)}
    assert queue[ids(checkout)["bc"]]["Dependency"] == "(null)", "perturb is done"


def test_a_bug_is_left_to_a_person_and_the_rest_waits(checkout: Faked) -> None:
    from r2v.slurm.healing.reconcile import by_sentinel as heal

    first = failed_bc(checkout, "bug", "ValueError: the answer is 43", 1)
    submitted = len(calls(checkout, "sbatch"))
    assert heal(NAME, "bc") == 0
    failure = chain(checkout).jobs["bc"].latest.failure  # type: ignore[union-attr]
    assert failure is not None and failure.kind == "bug" and "blocked: candidates, preference" in failure.action
    assert ids(checkout) == first
    assert len(calls(checkout, "sbatch")) == submitted + 1, "a sentinel for those that wait"
    assert updates(checkout, first["candidates"]) == []


def test_resume_prints_the_difference_and_keeps_what_waits(checkout: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    first = failed_bc(checkout, "bug", "ValueError: the answer is 43", 1)
    assert run_all.resume(name=NAME, overrides=["training.bc.lr=1e-5"], max_attempts=5) == 0
    now, made = ids(checkout), chain(checkout)
    assert "training.bc.lr: None -> 1e-05" in capsys.readouterr().out
    assert made.jobs["bc"].latest.reason == "resume" and now["bc"] != first["bc"]  # type: ignore[union-attr]
    assert made.limits.attempts == 5
    for name in NAMES[4:]:
        assert now[name] == first[name]
    comments = [word for call in calls(checkout, "scontrol", "update") for word in call if word.startswith("comment=")]
    assert comments and all(word.endswith(f"{made.config_sha}@{made.submitter}") for word in comments)
    assert "lr: 1.0e-05" in (chains.folder(checkout.root, NAME) / "config.yaml").read_text()


def test_what_was_made_by_hand_frees_what_waits_for_it(checkout: Faked) -> None:
    """bc failed in the chain and was then made by `sbatch scripts/slurm/03_train_policy.sh`."""
    from r2v.slurm.healing.reconcile import bring_in_line

    first = failed_bc(checkout, "bug", "ValueError: the answer is 43", 1)
    made = bring_in_line(checkout.root, chain(checkout)).chain
    assert updates(checkout, first["candidates"]) == []
    bring_in_line(checkout.root, made.with_job("bc", skipped="up to date"))
    (call,) = updates(checkout, first["candidates"])
    assert f"dependency=afterok:{first['verifier']}" in call


def test_an_end_that_nobody_can_tell_of_is_held_and_said(checkout: Faked) -> None:
    from r2v.slurm.healing.reconcile import by_sentinel as heal

    failed_bc(checkout, "bug", "", 1)
    shutil.rmtree(job_record.record_folder(checkout.root, NAME, ids(checkout)["bc"]))
    heal(NAME, "bc")
    failure = chain(checkout).jobs["bc"].latest.failure  # type: ignore[union-attr]
    assert failure is not None and failure.kind == "unknown"
    assert heal(NAME, "evaluate") == 0 and chain(checkout).jobs["evaluate"].latest.failure is None  # type: ignore[union-attr]


def test_resume_does_not_change_what_runs(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    queue = rows(checkout)
    running = next(row for row in queue if row["JobID"] == ids(checkout)["collect"])
    running["State"] = "RUNNING"
    put(checkout, queue)
    with pytest.raises(LeaseConflict, match=f"collect runs with the configuration as it was .job {running['JobID']}"):
        run_all.resume(name=NAME, overrides=["data.seeds=[7]"])
    assert run_all.resume(name=NAME, overrides=["router.l2=7"]) == 0


PAID = ["teacher.provider=openai", "teacher.model_name=gpt-5.2", "teacher.api_key_env=LAB_SECRET", "teacher.max_usd=9"]


def test_the_variable_that_a_chain_may_send_as_a_key_is_recorded_and_holds_for_its_jobs(
    checkout: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAB_SECRET", "sk-0123456789")
    asked: dict[str, Any] = {"benchmark": "desk", "overrides": PAID, "without": NAMES[1:]}
    with pytest.raises(UsageError, match="--allow-env LAB_SECRET"):
        run_all.submit(**asked)
    assert calls(checkout, "sbatch") == [] and chains.names(checkout.root) == []
    run_all.submit(**asked, allow_env=["LAB_SECRET"], dry_run=True)
    assert capsys.readouterr().out.count(" --allow-env LAB_SECRET'") == 1
    run_all.submit(**asked, allow_env=["LAB_SECRET"])
    run_all.submit(**asked)
    assert chain(checkout).allow_env == ("LAB_SECRET",) and len(calls(checkout, "sbatch")) == 2
    assert with_allowed_keys(["collect"], chain(checkout)) == ["collect", "--allow-env", "LAB_SECRET"]
    with pytest.raises(UsageError, match="--allow-env NEW_SECRET"):
        run_all.resume(name=NAME, overrides=["teacher.api_key_env=NEW_SECRET"])
    run_all.resume(name=NAME, overrides=["teacher.max_tokens=7"], allow_env=["OTHER_SECRET"])
    assert chain(checkout).allow_env == ("LAB_SECRET", "OTHER_SECRET")
    assert "sk-0123456789" not in (chains.folder(checkout.root, NAME) / "chain.json").read_text()
    put(checkout, [])
    with pytest.raises(UsageError, match="--allow-env LAB_SECRET"):  # allowed for that configuration, not for this one
        run_all.submit(**{**asked, "overrides": [*PAID, "teacher.base_url=http://stranger/v1"]})


def test_a_hub_model_is_pinned_to_the_commit_that_the_cache_knows(
    checkout: Faked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs of the chain read the same version, also when `main` moves on; a later submission takes the later
    version."""
    monkeypatch.setenv("HF_HUB_CACHE", str(checkout.root / "hub"))
    main = checkout.root / "hub" / "models--org--small" / "refs" / "main"
    main.parent.mkdir(parents=True)
    path = chains.folder(checkout.root, NAME) / "config.yaml"
    asked: dict[str, Any] = {
        "benchmark": "desk",
        "overrides": ["policy.model_name=org/small", "training.lr=1e-4", "policy.lora_r=8"],
        "without": NAMES[3:],
    }
    for commit in ("1" * 40, "2" * 40):
        main.write_text(commit)
        run_all.submit(**asked)
        run_all.submit(**asked)
        assert load(path).policy.revision == commit
        main.write_text("3" * 40)
        run_all.resume(name=NAME, overrides=["training.bc.lr=1e-9"])
        assert load(path).policy.revision == commit
        put(checkout, [])


def test_what_is_submitted_without_a_job_stays_without_it(checkout: Faked) -> None:
    run_all.submit(benchmark="desk", without=["ablations"])
    assert "ablations" not in chain(checkout).jobs and len(rows(checkout)) == EVERY - 1
    run_all.resume(name=NAME)
    assert "ablations" not in chain(checkout).jobs
    run_all.submit(benchmark="desk")
    assert len(rows(checkout)) == EVERY


def test_going_on_from_a_job_takes_what_is_published_and_keeps_the_graph(checkout: Faked) -> None:
    from r2v.pipeline.run import run_here
    from tests.pipeline.test_run import LATER, small

    config = checkout.root / "chain.yaml"
    config.write_text(to_yaml(small()))
    run_here(small(), without=LATER, root=checkout.root)
    run_all.submit(config=str(config))
    made = chains.read(checkout.root, "chain_noisy")
    assert [name for name, job in made.jobs.items() if job.skipped] == ["collect", "perturb"]
    assert len(rows(checkout)) == 9 and made.jobs["bc"].needs == ("perturb",)
    put(checkout, [{**rows(checkout)[0], "JobID": "500", "Comment": "(null)"}])  # another user's job
    run_all.resume(name="chain_noisy", start="bc", overrides=["training.bc.lr=1e-9"])
    made = chains.read(checkout.root, "chain_noisy")
    assert SEED_TABLE.items() <= {name: job.needs for name, job in made.jobs.items()}.items()
    assert [len(job.attempts) for job in made.jobs.values()] == [0, 0, *[2] * 8]


def test_a_need_that_failed_meanwhile_stops_the_submission(checkout: Faked) -> None:
    """Slurm would accept its id and, once it has forgotten the job, start the dependent job."""
    run_all.submit(benchmark="desk")
    gone = {ids(checkout)["collect"], ids(checkout)["perturb"]}
    put(checkout, [row for row in rows(checkout) if row["JobID"] not in gone])
    from r2v.slurm.healing.reconcile import bring_in_line

    planned = chain(checkout).with_job("perturb", planned=chains.Attempt(id="", reason="rerun"))
    now = bring_in_line(checkout.root, planned)
    assert now.submitted == [] and now.chain.jobs["perturb"].planned is not None
    assert client.queue(NAME)


def of_another(checkout: Faked) -> Chain:
    """Submit the chain as another user, whose jobs squeue --me does not list."""
    run_all.submit(benchmark="desk")
    theirs = replace(chain(checkout), user="ada")
    chains.write(checkout.root, theirs)
    return theirs


def test_a_chain_records_whose_it_is_and_where(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    made = chain(checkout)
    assert made.is_mine and made.user == chains.account() and made.checkout == chains.checkout_id(checkout.root)
    assert all(row["Comment"].endswith(f"@{made.user}:{made.checkout}") for row in rows(checkout))


def test_a_chain_of_another_user_is_refused_with_the_name_and_can_be_taken_over(checkout: Faked) -> None:
    theirs, submitted = of_another(checkout), len(rows(checkout))
    for act in (
        lambda: run_all.submit(benchmark="desk"),
        lambda: run_all.resume(name=NAME),
        lambda: run_all.cancel(name=NAME),
    ):
        with pytest.raises(UsageError, match=f"{NAME} is ada's.*--take-over"):
            act()
    assert chain(checkout) == theirs and len(rows(checkout)) == submitted
    run_all.submit(benchmark="desk", take_over=True)
    assert chain(checkout).user == chains.account()


def test_a_view_of_another_users_chain_asks_for_their_jobs_and_changes_nothing(
    checkout: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = of_another(checkout)
    assert cli.main(["status"]) == ACTIVE
    assert "ada's chain: it can be looked at, not changed" in capsys.readouterr().out
    assert [word for call in calls(checkout, "squeue") for word in call if word.startswith("--user")] == ["--user=ada"]
    assert chain(checkout) == theirs


def test_a_queue_that_comes_back_empty_is_not_believed_where_the_controller_has_the_job(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    submitted = len(rows(checkout))
    (checkout.folder / "filtered").touch()
    with pytest.raises(EnvironmentFault, match="squeue lists none of its jobs, but scontrol shows collect"):
        run_all.submit(benchmark="desk")
    (checkout.folder / "filtered").unlink()
    assert len(rows(checkout)) == submitted
