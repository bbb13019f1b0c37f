"""Chains of one checkout with a common stage share one Slurm job. The fake Slurm answers; test_drill_shared.py shows on
a real one that no GPU is held meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.config import load
from r2v.errors import UsageError
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.run import run_here
from r2v.slurm import run_all
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import WHOLE, Chain
from r2v.slurm.healing.reconcile import reconcile
from r2v.slurm.healing.shared_stages import share
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked
from tests.slurm.test_run_all import calls, put, rows
from tests.slurm.test_run_all import checkout as checkout

SHARED = ("collect", "perturb", "bc", "verifier")
OWN = ["candidates", "preference", "router_features", "router", "evaluate", "ablations"]


def submitted(name: str, *overrides: str) -> Chain:
    """Submit a chain under a prefix; `overrides` can give it candidates of its own."""
    assert run_all.submit(benchmark="desk", overrides=[f"prefix={name}", *overrides]) == 0
    return chains.read(Path(), name)


def latest(name: str, job: str) -> str:
    attempt = chains.read(Path(), name).jobs[job].latest
    assert attempt is not None
    return attempt.id


def waits(checkout: Faked, name: str, job: str) -> str:
    return next(row["Dependency"] for row in rows(checkout) if row["JobID"] == latest(name, job))


def updated(checkout: Faked, id_: str) -> list[str]:
    """Return the dependencies that a waiting job was given, in order."""
    made = [call for call in calls(checkout, "scontrol", "update") if f"jobid={id_}" in call]
    return [word.partition("=")[2] for call in made for word in call if word.startswith("dependency=")]


@pytest.fixture
def three(checkout: Faked) -> Faked:
    """Submit x1, and x2 and x3, which share everything up to its bc and verifier."""
    submitted("x1")
    submitted("x2", "candidates.num_samples=3")
    submitted("x3", "candidates.num_samples=7")
    return checkout


def test_what_three_chains_share_is_one_job_for_which_all_wait(three: Faked) -> None:
    assert len(calls(three, "sbatch")) == 11 + 7 + 7
    for name in ("x2", "x3"):
        made = chains.read(Path(), name)
        assert {job: entry.owner for job, entry in made.jobs.items()} == {
            **dict.fromkeys(SHARED, "x1"),
            **dict.fromkeys(OWN, ""),
        }
        assert waits(three, name, "candidates") == f"afterok:{latest('x1', 'bc')}:{latest('x1', 'verifier')}"
        assert made.slurm_ids & chains.read(Path(), "x1").slurm_ids == set(), "its hours are the owner's"


def test_status_and_the_like_tell_whose_it_is(three: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "x2"]) == 10
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  bc "))
    assert latest("x1", "bc") in line and "made by x1" in line
    assert cli.main(["logs", "x2", "bc"]) == 3 and "r2v logs x1 bc" in capsys.readouterr().err


def test_a_waiters_look_heals_what_it_waits_for_and_all_wait_for_the_next_attempt(three: Faked) -> None:
    first = latest("x1", "bc")
    folder = job_record.record_folder(Path(), "x1", first)
    folder.mkdir(parents=True)
    three.record(first, "x1", exit={"rc": 137, "kind": "host_oom", "line": "killed", "restart": 0, "at": chains.now()})
    put(three, [row for row in rows(three) if row["JobID"] != first])
    assert reconcile("x2") == []
    made = chains.read(Path(), "x1").jobs["bc"]
    assert [one.reason for one in made.attempts] == ["first", "host_oom"]
    assert updated(three, latest("x2", "candidates"))[-1].startswith(f"afterok:{latest('x1', 'bc')}:")
    assert reconcile("x3") == []
    assert updated(three, latest("x3", "candidates"))[-1].startswith(f"afterok:{latest('x1', 'bc')}:")
    assert len(chains.read(Path(), "x1").jobs["bc"].attempts) == 2


def test_cancelling_a_chain_leaves_what_others_wait_for_until_nobody_does(
    three: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all.cancel(name="x1")
    assert "collect, perturb, bc, verifier go on: x2, x3 waits" in capsys.readouterr().out
    left = [row["Comment"].rpartition("/")[0] for row in rows(three)]
    assert [mark for mark in left if mark.startswith("r2v:x1/")] == [
        *(f"r2v:x1/{job}" for job in ("collect",)),
        f"r2v:x1/{WHOLE}~heal",
        *(f"r2v:x1/{job}" for job in SHARED[1:]),
    ]
    assert reconcile("x1") == [] and [row["Comment"].rpartition("/")[0] for row in rows(three)] == left
    run_all.cancel(name="x2")
    assert any(row["Comment"].startswith("r2v:x1/bc/") for row in rows(three)), "x3 waits"
    run_all.cancel(name="x3")
    assert rows(three) == []


def test_what_another_chain_made_between_plan_and_submission_is_taken(checkout: Faked) -> None:
    small = ("data.num_episodes=2", "data.seeds=[1]", "env.options.num_tasks=12", "env.options.num_heldout=0")
    owner = submitted("x1", *small)
    planned = submitted("x2", *small, "candidates.num_samples=3").with_job("collect", owner="")  # as before the look
    assert owner.jobs["collect"].latest is not None
    config = load("configs/desk/noisy.yaml", ["prefix=x1", *small])
    put(checkout, [row for row in rows(checkout) if row["JobID"] != latest("x1", "collect")])
    assert share(Path(), planned, ["collect"], {})[1] == ["collect"], "it has left the queue and made nothing"
    run_here(config, without=[job.name for job in JOBS if job.name != "collect"])
    made, own = share(Path(), planned, ["collect"], {})
    assert own == [] and made.jobs["collect"].skipped == "made by the chain x1"


def test_what_the_owner_makes_no_more_is_made_here(three: Faked) -> None:
    run_all.resume(name="x1", overrides=["training.bc.lr=1e-5"])
    made = chains.read(Path(), "x2").jobs["bc"]
    assert made.owner == "" and made.latest is not None and made.latest.reason == "first"
    assert chains.read(Path(), "x2").jobs["verifier"].owner == "x1"
    assert updated(three, latest("x2", "candidates"))[-1] == f"afterok:{made.latest.id}:{latest('x1', 'verifier')}"
    other = chains.read(Path(), "x3").jobs["bc"]
    assert other.owner in ("x2", "") and other.recipe == made.recipe


def test_a_recipe_is_one_of_settings_and_of_those_before(checkout: Faked) -> None:
    one, same = submitted("x1"), submitted("x2")
    assert {job: entry.recipe for job, entry in one.jobs.items()} == {j: e.recipe for j, e in same.jobs.items()}
    other = submitted("x3", "training.bc.lr=1e-5")
    changed = {job for job, entry in other.jobs.items() if entry.recipe != one.jobs[job].recipe}
    assert changed == {"bc", "candidates", "preference", "router_features", "router", "evaluate", "ablations"}


def test_all_chains_together_keep_to_their_budget(checkout: Faked) -> None:
    submitted("x1")
    used = 292
    (checkout.root / "scripts/slurm/site.yaml").write_text(f"max_gpu_hours: {used + 10}\n")
    assert cli.main(["cluster", "set"]) == 0
    before = len(calls(checkout, "sbatch"))
    with pytest.raises(
        UsageError, match=r"x4: up to 292.0 GPU-hours, with 0.0 used and 292.0 in the queue; all chains"
    ):
        submitted("x4", "seed=9")
    assert len(calls(checkout, "sbatch")) == before and "x4" not in chains.names(Path())
    submitted("x1")


def test_the_history_of_a_chain_survives_a_change_of_its_configuration(
    checkout: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    first = submitted("x1")
    for job, entry in first.jobs.items():
        assert entry.latest is not None
        checkout.done(entry.latest.id, job, "x1")
    put(checkout, [])
    made = submitted("x1", "training.bc.lr=1e-5")
    assert made.earlier == {job: entry.attempts for job, entry in first.jobs.items()}
    assert all(len(entry.attempts) == 1 for entry in made.jobs.values())
    capsys.readouterr()
    assert cli.main(["status", "x1"]) == 10
    told = capsys.readouterr().out
    assert "(sbatch)" not in told and len(told.splitlines()) == 1 + 1 + 10
    assert cli.main(["cost", "x1"]) == 0
    assert sum(line.split()[:2] in (["bc", "1"], ["bc", "2"]) for line in capsys.readouterr().out.splitlines()) == 2
    again = submitted("x1", "training.bc.lr=1e-5")
    assert again.earlier == made.earlier and {**again.history} == {**made.history}
