"""Chain status, from the files, one squeue and one sacct together, even if some of them are late, missing or
contradictory."""

from __future__ import annotations

import dataclasses

import pytest

from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt, AttemptFailure
from r2v.slurm.views.chain_status import ChainStatus, statuses
from r2v.slurm.views.explain import explain
from r2v.slurm.views.humanize import reason_text
from r2v.slurm.views.sources import gather, names
from r2v.slurm.views.states import JobStatus
from r2v.slurm.views.status import lines
from r2v.storage.files import write_json
from tests.slurm.faked import NEEDS, Faked, ago
from tests.slurm.faked import faked as faked


def seen(faked: Faked, name: str = "desk_noisy") -> ChainStatus:
    faked.answer()
    return statuses(gather([name], faked.root), faked.root)[0]


def states(status: ChainStatus) -> dict[str, str]:
    return {one.job: one.state for one in status.jobs}


def one(status: ChainStatus, job: str) -> JobStatus:
    return next(each for each in status.jobs if each.job == job)


def waiting(faked: Faked, first: int = 100, after: str = "perturb") -> None:
    """Queue every job behind `after`, and each sentinel."""
    for number in range(first + 2 * list(NEEDS).index(after) + 2, first + 2 * len(NEEDS)):
        faked.queued(str(number), reason="Dependency")


def test_all_done_is_0_and_needs_one_call_of_each(faked: Faked) -> None:
    faked.chain()
    for at, job in enumerate(NEEDS):
        faked.done(str(100 + 2 * at), job, peak_rss_bytes=3 << 30)
        faked.accounted(str(100 + 2 * at), "COMPLETED")
    status = seen(faked)
    assert set(states(status).values()) == {"done"} and status.exit_code == 0
    assert sorted(faked.calls) == ["sacct", "squeue"]
    assert one(status, "bc").words == "20 min" and one(status, "bc").peak_bytes == 3 << 30


def test_500_jobs_are_one_squeue_and_one_sacct(faked: Faked) -> None:
    for at in range(50):
        faked.chain(f"chain{at}", first=1000 * (at + 1))
        for number in range(0, 10, 2):
            faked.done(str(1000 * (at + 1) + number), name=f"chain{at}")
            faked.accounted(str(1000 * (at + 1) + number), "COMPLETED")
        for number in range(10, 20):
            faked.queued(str(1000 * (at + 1) + number), reason="Dependency")
    faked.answer()
    found = statuses(gather(names(faked.root), faked.root), faked.root)
    assert sum(len(status.jobs) for status in found) == 500
    assert {status.exit_code for status in found} == {10}
    assert faked.calls == ["squeue", "sacct"]


def test_nothing_has_ended_so_sacct_is_not_asked(faked: Faked) -> None:
    faked.chain()
    faked.queued("100", reason="Resources", StartTime="2026-02-18T21:40:00")
    waiting(faked, after="collect")
    status = seen(faked)
    assert faked.calls == ["squeue"] and status.exit_code == 10
    assert one(status, "collect").words == "first in line, waits for free GPUs or nodes; starts about 2026-02-18 21:40"
    assert one(status, "candidates").words == "waits for bc, verifier"


def test_a_running_job_tells_step_loss_time_left_and_memory(faked: Faked) -> None:
    faked.chain()
    faked.done("100"), faked.done("102", "perturb")
    faked.queued("104", "RUNNING", "None", TimeUsed="1:10:00", NodeList="g1")
    waiting(faked, after="bc")
    faked.record(
        "104",
        start={"job": "bc", "restart": 1, "at": ago(700)},
        events=[
            {"at": ago(9000), "restart": 0, "what": "bc", "done": 0, "total": 400},
            {"at": ago(8000), "restart": 0, "what": "bc", "done": 90, "total": 400, "loss": 1.5},
            {"at": ago(600), "restart": 1, "what": "bc", "done": 100, "total": 400, "loss": 0.9},
            {
                "at": ago(0),
                "restart": 1,
                "what": "bc",
                "done": 160,
                "total": 400,
                "loss": 0.4321,
                "peak_rss_bytes": 13 << 30,
            },
        ],
    )
    status = one(seen(faked), "bc")
    assert (status.state, status.seconds_left, status.peak_bytes) == ("running", 2400.0, 13 << 30)
    assert status.words == "bc 160/400, loss 0.4321, 40 min left, 1:10:00 of 2-00:00:00 on g1"


def test_a_stage_that_plays_tells_episodes_blocks_and_helpers(faked: Faked) -> None:
    faked.chain()
    beside = {"Comment": "r2v-helpers:desk_noisy/evaluate", "WorkDir": str(faked.root)}
    faked.queued("116", "RUNNING", "None", TimeUsed="1:10:00", NodeList="g1")
    for number in range(1, 16):
        faked.queued(f"90_{number}", "RUNNING" if number < 8 else "PENDING", **beside)
    faked.queued("91_1", "RUNNING", **beside | {"Comment": "r2v-helpers:desk_shift/evaluate"})
    event = {"at": ago(0), "restart": 0, "what": "evaluation", "done": 412, "total": 1020, "blocks_left": 31}
    faked.record("116", start={"job": "evaluate", "restart": 0, "at": ago(700)}, events=[event])
    status = one(seen(faked), "evaluate")
    progress, where = "evaluation 412/1020 episodes, 31 blocks left", "1:10:00 of 2-00:00:00 on g1"
    assert status.words == f"{progress}, {where}, helpers: 8 pending and 7 running"
    assert status.helpers == {"PENDING": 8, "RUNNING": 7}


def test_a_running_job_tells_what_it_waits_for_since_when_why_and_until_when(faked: Faked) -> None:
    faked.chain()
    faked.queued("100", "RUNNING", "None", TimeUsed="1:10:00", NodeList="g1")
    waiting(faked, after="collect")
    over, since, until = ago(600), ago(300), ago(-3600)
    events = [
        {"at": ago(900), "restart": 0, "wait": "openai", "why": "503: overloaded", "until": until},
        {"at": ago(700), "restart": 0, "what": "collect", "done": 3, "total": 50},
        {"at": over, "restart": 1, "wait": "batch b1", "why": "7 requests", "until": until},
        {"at": over, "restart": 1, "wait": "batch b1", "why": None, "until": over},
        {"at": since, "restart": 1, "wait": "openai", "why": "429: slow down", "until": ago(200)},
        {"at": ago(200), "restart": 1, "wait": "openai", "why": "429: slow down", "until": until},
    ]
    faked.record("100", start={"job": "collect", "restart": 1, "at": ago(650)}, events=events)
    status = one(seen(faked), "collect")
    clocks = [text.replace("T", " ")[:16] for text in (since, until)]
    waits = f"waits for openai since {clocks[0]}, until {clocks[1]} at most (429: slow down)"
    assert status.words == f"collect 3/50, {waits}, 1:10:00 of 2-00:00:00 on g1"


def test_a_job_without_a_second_event_has_no_time_left(faked: Faked) -> None:
    faked.chain()
    faked.queued("100", "RUNNING", "None")
    waiting(faked, after="collect")
    faked.record("100", events=[{"at": ago(60), "restart": 0, "what": "collect", "done": 3, "total": 50}])
    status = one(seen(faked), "collect")
    assert status.seconds_left is None and status.words.startswith("collect 3/50, 0:00 of")


REASONS = {
    "Priority": "others are ahead",
    "(Resources)": "first in line",
    "BeginTime": "after a pause",
    "QOSMaxGRESPerUser": "a limit of your QOS is reached (QOSMaxGRESPerUser)",
    "AssocGrpGRES": "a limit of your account is reached",
    "JobHeldUser": "scontrol release 7",
    "ReqNodeNotAvail, UnavailableNodes:g1": "down, drained or reserved",
    "launch_failed_requeued_held": "scontrol release 7",
    "SomethingNew": "Slurm says SomethingNew",
}


@pytest.mark.parametrize("reason", REASONS)
def test_reasons_in_words(reason: str) -> None:
    assert REASONS[reason] in reason_text(reason, "7")


def test_a_failure_that_nobody_mends_is_1_and_its_children_keep_their_places(faked: Faked) -> None:
    chain = faked.chain()
    told = Attempt(
        id="104",
        sentinel="105",
        submitted_at=ago(3600),
        failure=AttemptFailure(
            kind="bug",
            line="ValueError: x (r2v/policy/training/bc.py:7)",
            action="not tried again: a fault of the code",
            at=ago(700),
        ),
    )
    chains.write(faked.root, chain.with_attempt("bc", told))
    faked.done("100"), faked.done("102", "perturb"), faked.done("106", "verifier")
    faked.failed("104", "bug", "ValueError: x (r2v/policy/training/bc.py:7)")
    faked.accounted("104", "FAILED", ExitCode="1:0")
    for number in range(108, 120):
        faked.queued(str(number), reason="DependencyNeverSatisfied" if number == 108 else "Dependency")
    status = seen(faked)
    assert status.exit_code == 1
    assert states(status) == {
        **dict.fromkeys(NEEDS, "blocked"),
        "collect": "done",
        "perturb": "done",
        "verifier": "done",
        "bc": "failed",
    }
    assert one(status, "bc").words.endswith("not tried again: a fault of the code") and one(status, "bc").kind == "bug"
    assert one(status, "candidates").words == "keeps its place until bc can go on"
    assert "r2v explain desk_noisy" in lines(status)[-1]


@pytest.mark.parametrize(("sentinel", "words"), [("RUNNING", "is at work"), ("PENDING", "comes next")])
def test_a_failure_whose_sentinel_is_there_is_being_healed(sentinel: str, words: str, faked: Faked) -> None:
    faked.chain()
    faked.failed("100", "host_oom", "killed at its memory limit", 137)
    faked.queued("101", sentinel, "None")
    waiting(faked, after="collect")
    status = seen(faked)
    assert (one(status, "collect").state, status.exit_code) == ("healing", 10)
    assert f"its sentinel 101 {words}" in one(status, "collect").words
    assert one(status, "perturb").state == "waiting"


def test_a_dead_sentinel_is_named(faked: Faked) -> None:
    faked.chain()
    faked.failed("100", "host_oom", "killed at its memory limit", 137)
    waiting(faked, after="collect")
    status = seen(faked)
    assert (one(status, "collect").state, status.exit_code) == ("failed", 1)
    assert "not healed: its sentinel 101 ended without acting" in one(status, "collect").words


def test_the_second_attempt_counts(faked: Faked) -> None:
    chain = faked.chain()
    chains.write(faked.root, chain.with_attempt("collect", Attempt(id="150", sentinel="151", reason="host_oom")))
    faked.failed("100", "host_oom", "killed at its memory limit", 137)
    faked.queued("150", "RUNNING", "None")
    waiting(faked, after="collect")
    status = one(seen(faked), "collect")
    assert (status.state, status.id, status.attempt) == ("running", "150", 2)


def test_accounting_down_is_a_banner_and_nothing_worse(faked: Faked) -> None:
    faked.chain()
    faked.done("100")
    faked.failed("102", "input", "trajectories.jsonl:3: cut", 3)
    waiting(faked)
    faked.down("sacct", "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection")
    status = seen(faked)
    assert {**states(status), "collect": "done", "perturb": "failed"} == states(status)
    assert status.banners[0].startswith("accounting down") and status.exit_code == 1
    assert one(status, "perturb").kind == "input"


def test_accounting_down_and_no_record_is_a_death_without_a_cause(faked: Faked) -> None:
    faked.chain()
    faked.record("100", start={"job": "collect", "restart": 0, "at": ago(5)})
    faked.down("sacct", "sacct: error: no")
    waiting(faked, after="collect")
    status = one(seen(faked), "collect")
    assert (status.state, status.kind) == ("failed", "unknown") and "ended without a record: killed" in status.words


def test_sacct_that_lags_behind_is_no_failure(faked: Faked) -> None:
    chain = faked.chain()
    chains.write(faked.root, chain.with_attempt("collect", Attempt(id="100", sentinel="101", submitted_at=ago(2))))
    waiting(faked, after="collect")
    status = seen(faked)
    assert (one(status, "collect").state, status.exit_code) == ("unknown", 10)
    assert "accounting does not know it yet" in one(status, "collect").words


@pytest.mark.parametrize(("rc", "kind", "state"), [(1, "bug", "failed"), (0, None, "done")])
def test_a_jobs_own_record_is_believed_before_an_accounting_that_is_late(
    rc: int, kind: str | None, state: str, faked: Faked
) -> None:
    """Regression: it has left the queue and sacct still calls it running; a failed job was shown as done."""
    faked.chain()
    faked.done("100", rc=rc, kind=kind, line="KeyError: 17" if rc else "")
    faked.accounted("100", "RUNNING")
    waiting(faked, after="collect")
    found = one(seen(faked), "collect")
    assert (found.state, found.kind) == (state, kind) and ("KeyError: 17" in found.words) == bool(rc)


def test_sacct_that_still_calls_it_running_is_no_failure(faked: Faked) -> None:
    faked.chain()
    faked.done("100")
    faked.accounted("100", "RUNNING")
    faked.record("102", start={"job": "perturb", "restart": 0, "at": ago(50)})
    faked.accounted("102", "RUNNING")
    waiting(faked)
    found = states(seen(faked))
    assert (found["collect"], found["perturb"]) == ("done", "running")


@pytest.mark.parametrize(
    ("says", "code", "state", "kind"),
    [
        ("OUT_OF_MEMORY", "0:125", "failed", "host_oom"),
        ("TIMEOUT", "0:0", "failed", "timeout"),
        ("NODE_FAIL", "0:0", "failed", "node_fail"),
        ("CANCELLED by 1000", "0:15", "cancelled", "cancelled"),
    ],
)
def test_what_slurm_killed_is_never_done(says: str, code: str, state: str, kind: str, faked: Faked) -> None:
    """A stage whose worker was killed can end with 0 all the same."""
    faked.chain()
    faked.done("100")
    faked.accounted("100", says, ExitCode=code)
    waiting(faked, after="collect")
    status = one(seen(faked), "collect")
    assert (status.state, status.kind) == (state, kind)


def test_completed_without_a_record_is_not_done(faked: Faked) -> None:
    faked.chain()
    faked.accounted("100", "COMPLETED")
    waiting(faked, after="collect")
    status = one(seen(faked), "collect")
    assert status.state == "failed" and "its own record is missing" in status.words


def test_the_end_of_an_earlier_life_is_not_the_end(faked: Faked) -> None:
    faked.chain()
    faked.record(
        "100",
        start={"job": "collect", "restart": 1, "at": ago(900)},
        exit={"rc": 75, "kind": "interrupted", "line": "x", "restart": 0, "at": ago(1000)},
    )
    faked.accounted("100", "REQUEUED", _old=True)
    faked.accounted("100", "COMPLETED")
    waiting(faked, after="collect")
    assert "record is missing" in one(seen(faked), "collect").words


def test_a_requeued_job_is_queued(faked: Faked) -> None:
    faked.chain()
    faked.record(
        "100",
        start={"job": "collect", "restart": 0, "at": ago(900)},
        exit={"rc": 75, "kind": "interrupted", "line": "x", "restart": 0, "at": ago(10)},
    )
    faked.queued("100", reason="BeginTime")
    waiting(faked, after="collect")
    status = one(seen(faked), "collect")
    assert status.state == "queued" and "starts it again after a pause" in status.words


@pytest.mark.parametrize("reason, state", [("None", "waiting"), ("Priority", "waiting"), ("JobHeldUser", "queued")])
def test_what_a_job_depends_on_counts_before_slurm_gives_the_reason(faked: Faked, reason: str, state: str) -> None:
    faked.chain()
    faked.queued("100", "RUNNING", "None")
    faked.queued("102", reason=reason, Dependency="afterok:100(unfulfilled)")
    waiting(faked)
    assert one(seen(faked), "perturb").state == state


def test_a_job_that_slurm_never_starts_is_told_with_its_reason(faked: Faked) -> None:
    faked.chain()
    faked.queued("100", reason="MaxMemPerLimit")
    waiting(faked, after="collect")
    seen_now = seen(faked)
    assert one(seen_now, "collect").state == "stuck" and seen_now.exit_code == 1
    assert one(seen_now, "perturb").state == "blocked"
    told = "\n".join(explain(seen_now))
    assert "collect stuck" in told and "never starts" in told and told.endswith("r2v resume desk_noisy --from collect")
    assert "nothing is broken" not in told


def test_a_submitter_cut_off_after_four_jobs(faked: Faked) -> None:
    chain = faked.chain()
    for job in list(NEEDS)[4:]:
        chain = chain.with_job(job, attempts=())
    chains.write(faked.root, chain)
    faked.queued("100", "RUNNING", "None")
    for number in range(101, 108):
        faked.queued(str(number), reason="Dependency")
    status = seen(faked)
    assert status.exit_code == 1 and list(states(status).values())[4:] == ["not submitted"] * 6
    assert "not submitted: candidates, preference" in status.banners[0]
    with chains.lock(faked.root, "desk_noisy"):
        assert "is submitting" in seen(faked).banners[0] and seen(faked).exit_code == 10


def test_what_somebody_is_just_seeing_to_is_healing_and_not_broken(faked: Faked) -> None:
    faked.done("100"), faked.done("102", "perturb"), faked.done("106", "verifier")
    again = dataclasses.replace(faked.chain().jobs["bc"].attempts[-1], id="130")
    chains.write(faked.root, faked.chain().with_attempt("bc", again))
    faked.queued("130", "RUNNING", "None")
    for number in range(108, 120):
        faked.queued(str(number), reason="DependencyNeverSatisfied" if number == 108 else "Dependency")
    assert seen(faked).exit_code == 1 and one(seen(faked), "candidates").state == "blocked"
    with chains.lock(faked.root, "desk_noisy"):
        assert seen(faked).exit_code == 10 and one(seen(faked), "candidates").state == "healing"
    faked.failed("106", "bug", "ValueError: x (r2v/verifier/model.py:7)")
    assert seen(faked).exit_code == 1 and one(seen(faked), "verifier").unanswered
    with chains.lock(faked.root, "desk_noisy"):
        assert seen(faked).exit_code == 10 and one(seen(faked), "verifier").state == "healing"
        assert explain(seen(faked))[0].startswith("desk_noisy: a failure is being healed (")
        answered = AttemptFailure(kind="bug", line="ValueError: x", action="not tried again", at=ago(7))
        failed = dataclasses.replace(faked.chain().jobs["verifier"].attempts[-1], failure=answered)
        chains.write(faked.root, faked.chain().with_attempt("verifier", failed))
        assert seen(faked).exit_code == 1 and one(seen(faked), "verifier").state == "failed"


def test_skipped_jobs_are_finished(faked: Faked) -> None:
    chain = faked.chain()
    chain = chain.with_job("collect", attempts=(), skipped="inputs unchanged").with_job(
        "verifier", attempts=(), skipped="inputs unchanged"
    )
    chains.write(faked.root, chain)
    faked.queued("102", "RUNNING", "None")
    waiting(faked)
    faked.queue = [row for row in faked.queue if row["JobID"] not in ("106", "107")]
    status = seen(faked)
    assert states(status)["verifier"] == "up to date" and one(status, "candidates").words == "waits for bc"


def test_what_failed_and_was_made_by_another_door_is_finished(faked: Faked) -> None:
    chain = faked.chain()
    chains.write(faked.root, chain.with_job("collect", skipped="inputs unchanged"))
    faked.failed("100", "bug", "x", job="collect")
    faked.queued("102", "RUNNING", "None")
    waiting(faked)
    status = seen(faked)
    assert (one(status, "collect").state, status.exit_code) == ("up to date", 10)


def test_cancelled_is_1(faked: Faked) -> None:
    chain = faked.chain()
    chains.write(faked.root, dataclasses.replace(chain, cancelled=ago(10)))
    for at in range(10):
        faked.accounted(str(100 + 2 * at), "CANCELLED by 1000", ExitCode="0:0", ElapsedRaw=0)
    status = seen(faked)
    assert set(states(status).values()) == {"cancelled"} and status.exit_code == 1
    assert "r2v resume desk_noisy" in status.banners[0]


def test_no_answer_from_the_queue_is_5_and_told_from_files(faked: Faked) -> None:
    faked.chain()
    faked.done("100")
    faked.record("102", start={"job": "perturb", "restart": 0, "at": ago(50)})
    faked.down("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    status = seen(faked)
    assert (states(status)["collect"], states(status)["perturb"]) == ("done", "unknown")
    assert status.exit_code == 5 and status.banners[0].startswith("the queue could not be asked")


def test_a_job_submitted_by_hand_stands_beside_its_chain(faked: Faked) -> None:
    faked.chain()
    for at, job in enumerate(NEEDS):
        faked.done(str(100 + 2 * at), job)
    faked.done("500", "verifier")
    faked.record("99", "swebench_clean", start={"job": "collect", "restart": 0, "at": ago(50)})
    faked.queued("99", "RUNNING", "None")
    assert names(faked.root) == ["desk_noisy", "swebench_clean"]
    status = seen(faked)
    assert [each.job for each in status.jobs if each.by_hand] == ["verifier"] and status.exit_code == 0
    alone = seen(faked, "swebench_clean")
    assert (states(alone), alone.exit_code) == ({"collect": "running"}, 10)


@pytest.mark.parametrize("version", ["22.05", "23.02", "23.11", "24.11"])
def test_every_version_of_sacct_is_read(version: str, faked: Faked) -> None:
    """The formats of 23.02, 23.11 and 24.11 are built from their documentation: see fake/slurm."""
    (faked.folder / "version").write_text(version)
    faked.chain()
    faked.done("100")
    faked.accounted("100", "OUT_OF_MEMORY", ExitCode="0:125")
    faked.accounted("100.batch", "OUT_OF_MEMORY", MaxRSS="50331648K", AllocTRES="")
    waiting(faked, after="collect")
    status = one(seen(faked), "collect")
    assert (status.kind, status.peak_bytes, faked.calls) == ("host_oom", 48 << 30, ["squeue", "sacct"])


def test_a_damaged_chain_is_one_line(faked: Faked) -> None:
    faked.chain()
    write_json(chains.folder(faked.root, "desk_noisy") / "chain.json", {"format": 1})
    with pytest.raises(Exception, match="damaged"):
        seen(faked)
