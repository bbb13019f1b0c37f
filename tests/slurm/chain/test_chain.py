"""The files of a chain, written and read back, and the state derived from the records of its jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.errors import InputError, LeaseConflict
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import (
    Attempt,
    AttemptFailure,
    Chain,
    ChainJob,
    HealingLimits,
    JobComment,
    comment,
    parse_comment,
)
from r2v.slurm.chain.job_record import JobRecord, progressed


def chain(**jobs: ChainJob) -> Chain:
    return Chain(
        name="desk_noisy",
        benchmark="desk",
        condition="noisy",
        config_sha="abc123",
        jobs=jobs,
        limits=HealingLimits(attempts=2, gpu_hours=7.5),
        sentinel={"partition": "cpu"},
    )


def job(*needs: str, attempts: tuple[Attempt, ...] = ()) -> ChainJob:
    return ChainJob(
        needs=needs, command=("train_policy", "--stage", "bc"), script="03_train_policy.sh", attempts=attempts
    )


def test_a_chain_reads_back_as_it_was_written(tmp_path: Path) -> None:
    failure = AttemptFailure(
        kind="host_oom", line="killed", action="submitted again as 9", at="2026-01-01T00:00:00+00:00"
    )
    one = Attempt(id="7", sentinel="8", resources={"mem": "4G", "requeue": ""}, overrides=("a.b=1",), failure=failure)
    whole = chain(collect=job(), bc=job("collect", attempts=(one, Attempt(id="9", reason="host_oom"))))
    chains.write(tmp_path, whole)
    assert chains.read(tmp_path, "desk_noisy") == whole
    assert json.loads((tmp_path / "outputs/.chains/desk_noisy/chain.json").read_text())["format"] == 1


def test_the_variables_that_jobs_may_send_are_read_back(tmp_path: Path) -> None:
    for names in ((), ("LAB_SECRET",)):
        chains.write(tmp_path, replace(chain(collect=job()), allow_env=names))
        assert chains.read(tmp_path, "desk_noisy").allow_env == names


def test_a_chain_whose_content_was_altered_is_refused(tmp_path: Path) -> None:
    chains.write(tmp_path, chain(collect=job(attempts=(Attempt(id="100"),))))
    path = chains.folder(tmp_path, "desk_noisy") / "chain.json"
    path.write_text(path.read_text().replace('"id": "100"', '"id": "101"'))
    with pytest.raises(InputError, match=r"chain\.json is damaged: its content is .*move it away and run the same"):
        chains.read(tmp_path, "desk_noisy")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no chain of this name"),
        ("{", "damaged"),
        ('{"format": 9}', "another version"),
        ('{"format": 1, "jobs": {}}', "damaged"),
    ],
)
def test_a_chain_that_cannot_be_read_says_so(text: str | None, told: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "outputs/.chains/x").mkdir(parents=True)
        (tmp_path / "outputs/.chains/x/chain.json").write_text(text)
    with pytest.raises(InputError, match=told):
        chains.read(tmp_path, "x")


def test_a_comment_says_whose_job_it_is() -> None:
    assert comment("desk_noisy", "bc", "abc1") == "r2v:desk_noisy/bc/abc1"
    assert parse_comment("r2v:desk_noisy/bc/abc1") == JobComment(
        name="desk_noisy", job="bc", sha="abc1", sentinel=False
    )
    assert parse_comment(comment("mrp", "router_features", "0f", sentinel=True)) == JobComment(
        name="mrp", job="router_features", sha="0f", sentinel=True
    )
    granted = parse_comment(comment("mrp", "bc", "0f", attempt=2, own="grant 42, r2v"))
    assert granted == JobComment(name="mrp", job="bc", sha="0f", sentinel=False, attempt=2, own="grant 42, r2v")
    strangers = ("", "mine", "r2v:x", "r2v:x/bc", "r2v:x/bc~heel/ab", "r2v:x/bc/ab.")
    assert [parse_comment(text) for text in strangers] == [None] * 6


def test_which_jobs_stand_behind() -> None:
    whole = chain(a=job(), b=job("a"), c=job("a"), d=job("b", "c"), e=job("d"))
    assert whole.after({"b"}) == ["d", "e"] and whole.after({"a"}) == ["b", "c", "d", "e"] and whole.after({"e"}) == []


def test_attempts_count_from_the_last_time_that_somebody_asked() -> None:
    reasons = ("first", "host_oom", "resume", "timeout", "cuda_oom")
    one = job(attempts=tuple(Attempt(id=str(i), reason=reason) for i, reason in enumerate(reasons)))
    assert [attempt.id for attempt in one.since_asked] == ["2", "3", "4"]
    assert one.latest == one.attempts[-1] and job().latest is None and job().since_asked == ()


def test_an_attempt_is_added_once() -> None:
    whole = chain(a=job()).with_attempt("a", Attempt(id="1")).with_attempt("a", Attempt(id="2"))
    again = whole.with_attempt("a", Attempt(id="2", sentinel="3"))
    assert [(one.id, one.sentinel) for one in again.jobs["a"].attempts] == [("1", None), ("2", "3")]


def test_only_one_may_change_a_chain(tmp_path: Path) -> None:
    with chains.lock(tmp_path, "x"), pytest.raises(LeaseConflict, match="held by pid"), chains.lock(tmp_path, "x"):
        pass


def test_records_are_read_whatever_lacks(tmp_path: Path) -> None:
    folder = job_record.record_folder(tmp_path, "x", "12")
    assert job_record.record(tmp_path, "x", "12") == JobRecord(folder=folder)
    folder.mkdir(parents=True)
    (folder / "start.json").write_text('{"job": "bc"}')
    (folder / "exit.json").write_text('{"rc":')
    (folder / "events.jsonl").write_text('{"what": "bc", "done": 1}\n{"what": "bc", "do')
    told = job_record.record(tmp_path, "x", "12")
    assert (told.start, told.exit, told.events) == ({"job": "bc"}, None, [{"what": "bc", "done": 1}])
    assert job_record.progress(told) == {"what": "bc", "done": 1}


def events(*rows: tuple[int, str, int]) -> JobRecord:
    return JobRecord(
        folder=Path(), events=[{"restart": restart, "what": what, "done": done} for restart, what, done in rows]
    )


@pytest.mark.parametrize(
    ("told", "restart", "earlier", "further"),
    [
        (events(), 0, [], False),
        (events((0, "bc", 0)), 0, [], False),
        (events((0, "bc", 5)), 0, [], True),
        (events((0, "bc", 5), (1, "bc", 3), (1, "bc", 5)), 1, [], False),
        (events((0, "bc", 5), (1, "bc", 3), (1, "bc", 6)), 1, [], True),
        (events((0, "bc", 6)), 0, [events((0, "bc", 6))], False),
        (events((0, "bc", 7)), 0, [events((0, "bc", 6))], True),
        (events((0, "play", 9), (1, "play", 9), (1, "score", 1)), 1, [], True),
        (events((0, "base: play", 9), (1, "no_dpo: play", 0)), 1, [], False),
        (events((0, "base: play", 9), (0, "no_dpo: play", 1), (1, "no_dpo: play", 2)), 1, [], True),
    ],
)
def test_progress_is_getting_further_than_ever_before(
    told: JobRecord, restart: int, earlier: list[JobRecord], further: bool
) -> None:
    assert job_record.progressed(told, restart, earlier) is further
    assert progressed is job_record.progressed
