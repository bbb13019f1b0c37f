"""Healing from an attempt's records, its log and a Slurm that answers late or not at all; on a real Slurm with stand-in
work, a site that kills waiting jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob
from r2v.slurm.client.command import through
from r2v.slurm.healing import heal as healing
from r2v.slurm.healing.heal import collect_evidence, examine
from r2v.slurm.healing.reconcile import by_sentinel as heal
from tests.slurm.fake_in_process import FakeInProcess
from tests.slurm.faked import NEEDS, Faked
from tests.slurm.faked import faked as faked
from tests.slurm.project import NAME, Project
from tests.slurm.test_run_all import calls, chain, failed_bc, ids, put, rows
from tests.slurm.test_run_all import checkout as checkout

CHANGE = ("--overrides", "training.preference.lr=3e-4")
KILLED, COUSIN = "router_features", "ablations"


def test_what_slurm_killed_with_its_parent_comes_back_and_what_a_person_cancelled_does_not(made: Project) -> None:
    """`--kill-on-invalid-dep=no` overrides a site's kill_invalid_depend. A site that kills all the same (a plugin
    removes the option) is simulated: one waiting job is replaced by one without the option."""
    made.behave(preference={"hold": "go", "cuda_oom_above": 4})
    made.r2v("run_all", "desk", *CHANGE)
    made.cluster.wait(lambda: "began" in made.log("preference"))
    before = made.ids()
    with chains.lock(made.folder, NAME, wait=30.0):  # a starting job's reconcile ends jobs that are not recorded yet
        dead = made.cluster.sbatch("-o", "/dev/null", "--mem=1G", "--wrap=sleep 3; exit 1")
        other = made.cluster.sbatch(
            "--kill-on-invalid-dep=yes",
            f"--dependency=afterok:{dead}",
            "-o",
            "/dev/null",
            "--mem=1G",
            f"--comment=r2v:{NAME}/{KILLED}/{made.chain()['config_sha']}",
            f"--chdir={made.folder}",
            "--wrap=exit 7",
        )
        made.cluster.wait(lambda: made.cluster.states().get(other, "").startswith("CANCELLED"))
        path = made.folder / "outputs/.chains" / NAME / "chain.json"
        chain = json.loads(path.read_text())
        chain["jobs"][KILLED]["attempts"][-1]["id"] = other
        del chain["sha256"]
        path.write_text(json.dumps(chain))
    made.cluster.run("scancel", before[KILLED], before[COUSIN])
    (made.folder / "go").touch()
    made.cluster.wait(lambda: made.ids()[KILLED] not in (other, before[KILLED]))
    made.drained()
    now = made.ids()
    assert made.attempts(KILLED)[-1]["reason"] == "dependency" and made.attempts(KILLED)[-1]["counted"] is False
    assert (now["router"], now["evaluate"], now[COUSIN]) == (before["router"], before["evaluate"], before[COUSIN])
    states = made.cluster.states()
    assert {states[now[job]] for job in ("preference", KILLED, "router", "evaluate")} == {"COMPLETED"}
    assert states[before[COUSIN]].startswith("CANCELLED")
    log = "".join(one.read_text() for one in made.folder.glob("logs/*.out"))
    assert "killed with its parent, resubmitting: " in log and f" job={other}\n" in log


BC = Attempt(id="104")


class Clock(FakeInProcess):
    """A clock that advances only in sleeps, so that the duration of the fake commands decides nothing."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(faked: Faked) -> Iterator[Clock]:
    clock = Clock()
    with through(clock):
        yield clock


def test_only_the_end_of_a_log_is_searched(faked: Faked) -> None:
    made = faked.chain()
    log = faked.root / "logs" / "bc_desk_noisy_104.out"
    text = "out of memory\n" + "step\n" * 20_000 + "ValueError: 43\n"
    log.write_text(text)
    assert collect_evidence(faked.root, made, "bc", BC, {}).log == text[-healing.LOG_TAIL :]
    log.write_bytes(b"short \xff\n")
    assert collect_evidence(faked.root, made, "bc", BC, {}).log == "short \ufffd\n"
    log.unlink()
    assert collect_evidence(faked.root, made, "bc", BC, {}).log == ""


def test_the_exit_of_an_earlier_start_is_not_that_of_this_one(faked: Faked) -> None:
    made = faked.chain()
    faked.record("104", start={"restart": 1}, exit={"rc": 75, "kind": "interrupted", "restart": 0})
    assert collect_evidence(faked.root, made, "bc", BC, {}).exit is None
    faked.record("104", start={"restart": 1}, exit={"rc": 1, "kind": "bug", "restart": 1})
    known = collect_evidence(faked.root, made, "bc", BC, {}).exit
    assert known is not None and known["kind"] == "bug"


@pytest.mark.parametrize(
    ("start", "scontrol", "started"),
    [
        ({"restart": 0}, {}, True),
        (None, {"NodeList": "g1"}, True),
        (None, {"NodeList": "(null)"}, False),
        (None, {"NodeList": ""}, False),
        (None, {}, False),
    ],
)
def test_a_job_ran_where_it_says_so_or_was_given_a_node(
    start: dict[str, int] | None, scontrol: dict[str, str], started: bool, faked: Faked
) -> None:
    made = faked.chain()
    if start is not None:
        faked.record("104", start=start)
    assert collect_evidence(faked.root, made, "bc", BC, scontrol).started is started


def test_accounting_is_asked_where_nothing_else_can_tell_and_the_latest_start_counts(
    clock: Clock, faked: Faked
) -> None:
    made = faked.chain()
    faked.accounted("104", "NODE_FAIL", _old=True)
    faked.accounted("104", "PREEMPTED", _old=True)
    faked.accounted("104", "OUT_OF_MEMORY")
    faked.answer()
    evidence, failure = examine(faked.root, made, "bc", BC, patient=True)
    assert failure is not None and failure.kind == "host_oom"
    assert evidence.row is not None and evidence.row.state == "OUT_OF_MEMORY"
    assert faked.calls.count("sacct") == 1


def test_an_end_that_a_stage_tells_of_without_doubt_asks_no_accounting(clock: Clock, faked: Faked) -> None:
    made = faked.chain()
    faked.failed("104", "input", "no such file", 3)
    faked.answer()
    _, failure = examine(faked.root, made, "bc", BC, patient=True)
    assert failure is not None and (failure.kind, failure.line) == ("input", "no such file")
    assert "sacct" not in faked.calls


def test_a_doubtful_end_is_asked_after_and_may_turn_into_another(clock: Clock, faked: Faked) -> None:
    made = faked.chain()
    faked.failed("104", "killed", "killed by signal 9", 137)
    faked.accounted("104", "OUT_OF_MEMORY")
    faked.answer()
    assert examine(faked.root, made, "bc", BC, patient=True)[1].kind == "host_oom"  # type: ignore[union-attr]


def test_accounting_that_comes_late_is_asked_again_and_one_that_is_down_is_not(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, faked: Faked
) -> None:
    monkeypatch.setattr(healing, "SETTLE", 1.5)
    made = faked.chain()
    faked.accounted("104", "RUNNING")
    faked.answer()
    evidence, failure = examine(faked.root, made, "bc", BC, patient=True)
    assert failure is None and evidence.row is not None and clock.seconds == 1.5
    assert faked.calls.count("sacct") == 4, "one in each half second, and one at the end"
    faked.down("sacct", "sacct: error: Connection refused")
    before = faked.calls.count("sacct")
    assert examine(faked.root, made, "bc", BC, patient=True)[1] is None and faked.calls.count("sacct") == before + 1


def failure_of(root: Path, job: str = "bc") -> tuple[str, str] | None:
    latest = chains.read(root, "desk_noisy").jobs[job].latest
    return None if latest is None or latest.failure is None else (latest.failure.kind, latest.failure.action)


def test_a_failure_is_answered_once_and_written_beside_its_attempt(clock: Clock, faked: Faked) -> None:
    faked.chain()
    faked.failed("104", "usage", "no such key", 2)
    faked.queued("108")
    faked.answer()
    assert heal("desk_noisy", "bc") == 0
    known = chains.read(faked.root, "desk_noisy").jobs["bc"].latest
    assert failure_of(faked.root) == (
        "usage",
        "not tried again: trying again does not mend a failure of kind usage; blocked: candidates, preference, "
        "router_features, router, evaluate, ablations",
    )
    faked.failed("104", "input", "another line", 3)
    assert heal("desk_noisy", "bc") == 0
    assert chains.read(faked.root, "desk_noisy").jobs["bc"].latest == known, "the first answer stands"
    assert failure_of(faked.root, "collect") is None


def test_a_chain_that_a_person_cancelled_is_left_alone_and_says_so(
    clock: Clock, faked: Faked, caplog: pytest.LogCaptureFixture
) -> None:
    made = faked.chain()
    chains.write(faked.root, replace(made, cancelled="2026-01-01T00:00:00+00:00"))
    faked.failed("104", "usage", "no such key", 2)
    faked.answer()
    with caplog.at_level("INFO", logger="r2v"):
        assert heal("desk_noisy", "bc") == 0
    assert failure_of(faked.root) is None


def test_a_job_that_was_never_submitted_needs_nothing(clock: Clock, faked: Faked) -> None:
    made: Chain = faked.chain(**{name: ChainJob(needs=(), command=(name,), script="") for name in NEEDS})
    faked.answer()
    assert heal("desk_noisy", "bc") == 0
    assert chains.read(faked.root, "desk_noisy") == made and faked.calls == ["squeue"]


def test_what_slurm_cancelled_as_it_waited_comes_back_behind_the_new_attempt(clock: Clock, checkout: Faked) -> None:
    first = failed_bc(checkout, "killed", "killed", 137)
    taken, cancelled = first["candidates"], first["preference"]
    checkout.accounts.clear()
    checkout.accounted(first["bc"], "FAILED", ExitCode="0:9")
    checkout.accounted(taken, "CANCELLED", NodeList="None assigned")
    checkout.accounted(cancelled, "CANCELLED by 1000", NodeList="None assigned")
    (checkout.folder / "accounting.json").write_text(json.dumps(checkout.accounts))
    put(checkout, [row for row in rows(checkout) if row["JobID"] not in (taken, cancelled)])
    assert heal(NAME, "bc") == 0
    now, made = ids(checkout), chain(checkout).jobs
    assert now["bc"] != first["bc"] and now["candidates"] != taken and now["preference"] == cancelled
    back = made["candidates"].latest
    assert back is not None and (back.reason, back.counted) == ("dependency", False)
    assert {name: now[name] for name in ("router_features", "router", "evaluate")} == {
        name: first[name] for name in ("router_features", "router", "evaluate")
    }
    queue = {row["JobID"]: row for row in rows(checkout)}
    assert now["bc"] in queue[now["candidates"]]["Dependency"]
    updated = [call for call in calls(checkout, "scontrol", "update") if f"jobid={now['candidates']}" in call]
    assert updated == [] or all(first["bc"] not in " ".join(call) for call in updated)


def test_what_a_sentinel_killed_halfway_left_behind_the_old_attempt_is_retargeted(
    clock: Clock, checkout: Faked
) -> None:
    """The process died after it had resubmitted bc and recorded that, and before it pointed candidates at the new
    job."""
    first = failed_bc(checkout, "killed", "killed", 137)
    checkout.accounts.clear()
    checkout.accounted(first["bc"], "FAILED", ExitCode="0:9")
    (checkout.folder / "accounting.json").write_text(json.dumps(checkout.accounts))
    assert heal(NAME, "bc") == 0
    now, attempts, asked = ids(checkout), chain(checkout).jobs["bc"].attempts, len(calls(checkout))
    waits = {row["JobID"]: row["Dependency"] for row in rows(checkout)}[first["candidates"]]
    assert first["bc"] in waits, "the fake queue leaves it as it was, which is what a killed sentinel leaves"
    assert heal(NAME, "bc") == 0
    later = {call[2]: call[3] for call in calls(checkout)[asked:] if call[:2] == ["scontrol", "update"]}
    del later[f"jobid={first['verifier']}"]  # a real queue itself drops the dependency on collect, which is done
    assert later == {f"jobid={first['candidates']}": f"dependency=afterok:{now['bc']}:{first['verifier']}"}
    assert chain(checkout).jobs["bc"].attempts == attempts, "nothing is submitted a third time"
