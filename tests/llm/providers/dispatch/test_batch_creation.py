"""An unconfirmed batch is searched for among foreign ones until it is found or known to be absent; and kill -9 at every
journal point of a batch, under every ambiguous fault: the provider's ledger shows each request paid once, and no answer
is lost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle, Timing
from r2v.emulator.ledger import turn_of
from r2v.errors import LeaseConflict
from r2v.llm.providers.dispatch.batch_creation import find_created_batch, newest_batch_id
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, WallClock
from r2v.llm.providers.provider import BatchLimits, BatchProvider, BatchState, ProviderFault
from r2v.llm.providers.provider_requests import ResultLine
from r2v.llm.providers.spending.journal_state import JournalBatch, JournalState
from r2v.storage.lease import lease
from tests.llm.talk import environment, killed, play
from tests.paid import paid_bodies
from tests.trust import drawn

COUNT, TURNS = 3, 1
AMBIGUOUS = ("commit_then_500", "commit_then_529", "commit_then_reset", "commit_then_silence")
KILLED = [
    (provider, fault, how)
    for provider in ("openai", "anthropic")
    for fault, hows in [(None, ("after", "before", "torn")), *((one, ("after", "before")) for one in AMBIGUOUS)]
    for how in hows
]
POINTS = range(1, 12)
"""Syncs: a batch that is made at once has 8 (7 without an upload), one that is searched for has more."""


@dataclass
class Account:
    """An account's batches and its clock, seen through the provider's protocol; no request leaves the process.

    `listed` gives each further list, newest first; the last one repeats; a fault in it is raised.
    """

    listed: list[list[BatchState] | ProviderFault]
    results_of: dict[str, list[str | None] | ProviderFault] = field(default_factory=dict)
    """By batch: the custom_ids of its results, in order, or the fault of reading them. None: an unreadable line."""
    limits: BatchLimits = BatchLimits(requests=10, bytes=1000, endpoint="/v1", uploads=False)
    name: str = "account"
    time: float = 1000.0
    lists: int = 0
    asked: list[str] = field(default_factory=list)

    async def list_batches(self) -> AsyncIterator[BatchState]:
        now = self.listed[min(self.lists, len(self.listed) - 1)]
        self.lists += 1
        if isinstance(now, ProviderFault):
            raise now
        for state in now:
            yield state

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        self.asked.append(batch_id)
        now = self.listed[min(self.lists, len(self.listed)) - 1]
        assert not isinstance(now, ProviderFault)
        return next(state for state in now if state.id == batch_id)

    async def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        lines = self.results_of[state.id]
        if isinstance(lines, ProviderFault):
            raise lines
        for custom_id in lines:
            yield ResultLine(custom_id=custom_id, verdict=None)

    async def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 5.0 and self.time < 10_000.0, "the search does not end"
        self.time += seconds

    def find(self, *, reconcile_after: float = 60.0, **known: Any) -> BatchState | None:
        """Search for a batch of two requests, sent at 1000 s, for at most 100 s after that."""
        batch = JournalBatch(key="run-b0", count=2, sha256="", tokens=0, usd=0.1, began=990.0, sent_at=1000.0)
        batch.requests = dict.fromkeys(("run-c-0-0", "run-d-0-0"))  # type: ignore[assignment]
        for name, value in known.items():
            setattr(batch, name, value)
        policy = DispatchPolicy(timeout=40.0, reconcile_after=reconcile_after, poll_seconds=30.0)
        clock = WallClock(now=lambda: self.time, sleep=self.sleep)
        state = JournalState(run="run", batch_ids={"ours-too"})
        provider = cast(BatchProvider, self)
        return asyncio.run(find_created_batch(provider, batch, state, policy, clock))


def listed(name: str, total: int = 2, *, done: bool = True, **fields: Any) -> BatchState:
    return BatchState(id=name, state="ended", done=done, total=total, **fields)


UPLOADS = BatchLimits(requests=10, bytes=1000, endpoint="/v1", uploads=True)
FORBIDDEN = ProviderFault("this key may not list", kind="account", status=403)
GONE = ProviderFault("archived", kind="retry", status=404)
BROKEN = ProviderFault("reset", kind="retry")


def test_a_strangers_batch_of_as_many_requests_is_not_taken_for_ours() -> None:
    """Both were made during our call: only their results tell them apart."""
    stranger, ours = listed("stranger"), listed("ours")
    results: dict[str, Any] = {"stranger": ["other-x-0-0"], "ours": ["run-d-0-0", "run-c-0-0"]}
    account = Account(listed=[[stranger, ours]], results_of=results)
    found = account.find()
    assert found is not None and found.id == "ours"
    assert account.asked == ["stranger", "ours"] and account.time == 1000.0
    alone = Account(listed=[[stranger]], results_of=results)
    assert alone.find() is None, "known by its results not to be ours, so nothing of ours was created"
    assert alone.asked == ["stranger"], "a stranger is asked once"
    assert 1100.0 <= alone.time < 1105.0, "a call that was cut off may have been carried out until its timeout"


def test_what_was_there_before_the_call_or_is_known_as_another_is_not_asked_for() -> None:
    batches = [listed("ours-too"), listed("before"), listed("long-before")]
    account = Account(listed=[batches], results_of={})
    assert account.find(newest="before") is None
    assert account.asked == []


def test_a_batch_whose_sum_is_another_is_ours_by_its_custom_ids() -> None:
    account = Account(listed=[[listed("ours", 7), listed("before")]], results_of={"ours": ["run-d-0-0"]})
    found = account.find(newest="before")
    assert found is not None and found.id == "ours"


def test_a_list_without_the_end_that_it_had_is_searched_by_sums() -> None:
    """The newest batch before the call was deleted since, and the account's whole history cannot be read."""
    results: dict[str, Any] = {"ours": ["run-d-0-0"], "old": ["other-x-0-0"]}
    account = Account(listed=[[listed("old", 9), listed("ours"), listed("older", 8)]], results_of=results)
    found = account.find(newest="deleted")
    assert found is not None and found.id == "ours" and account.asked == ["ours"]


def test_a_batch_that_is_still_running_is_waited_for_beyond_the_deadline() -> None:
    running, done = listed("ours", done=False), listed("ours")
    account = Account(listed=[[running]] * 60 + [[done]], results_of={"ours": [None, "run-c-0-0"]})
    found = account.find()
    assert found is not None and found.id == "ours"
    assert account.time >= 1000.0 + 60 * 5.0 - 5.0


def test_a_batch_whose_files_are_not_listed_yet_is_waited_for_too() -> None:
    account = Account(
        listed=[[listed("ours", lagging=True)]] * 3 + [[listed("ours")]], results_of={"ours": ["run-c-0-0"]}
    )
    found = account.find()
    assert found is not None and account.lists == 4


def test_an_archived_candidate_is_nobodys() -> None:
    account = Account(listed=[[listed("archived")]], results_of={"archived": GONE})
    assert account.find() is None


def test_a_candidate_without_one_readable_line_is_nobodys() -> None:
    assert Account(listed=[[listed("empty")]], results_of={"empty": [None]}).find() is None


def test_a_download_that_breaks_says_nothing_of_whose_it_is() -> None:
    account = Account(listed=[[listed("ours")]], results_of={"ours": BROKEN})

    async def mend(seconds: float) -> None:
        account.time += seconds
        if account.time > 1200.0:
            account.results_of["ours"] = ["run-c-0-0"]

    account.sleep = mend  # type: ignore[method-assign]
    found = account.find()
    assert found is not None and account.time > 1200.0


def test_an_account_that_may_not_list_ends_the_search_at_once() -> None:
    account = Account(listed=[FORBIDDEN])
    with pytest.raises(ProviderFault, match="may not list"):
        account.find()
    assert account.lists == 1


def test_a_list_that_fails_proves_nothing_however_late() -> None:
    account = Account(listed=[BROKEN] * 50 + [[]])
    assert account.find() is None
    assert account.lists == 51 and account.time >= 1000.0 + 50 * 5.0


def test_a_batch_that_is_listed_late_is_found_and_one_never_listed_is_given_up_at_the_deadline() -> None:
    late = Account(listed=[[]] * 15 + [[listed("ours")]], results_of={"ours": ["run-c-0-0"]})
    assert late.find() is not None
    never = Account(listed=[[]])
    assert never.find(unknown_at=1010.0) is None
    assert 1070.0 <= never.time <= 1075.0, "the call ended at 1010 s in this process, and 60 s are waited after that"


def test_the_search_is_said_with_the_seconds_that_it_may_take(caplog: pytest.LogCaptureFixture) -> None:
    Account(listed=[[]]).find()
    assert "batch unconfirmed; searching the provider's list: batch=run-b0 provider=account at_most=100s" in caplog.text
    caplog.clear()
    late = Account(listed=[[]], time=5000.0)
    assert late.find() is None and late.lists == 1 and "at_most=0s" in caplog.text


def test_a_list_is_not_asked_for_without_a_pause() -> None:
    hurried = Account(listed=[BROKEN, BROKEN, []])
    assert hurried.find(reconcile_after=0.0, unknown_at=1000.0) is None
    assert hurried.time == pytest.approx(1000.1), "a twentieth of a second at least"


def test_the_clock_of_another_machine_makes_nobody_wait_for_hours() -> None:
    account = Account(listed=[[]])
    assert account.find(sent_at=90_000.0) is None
    assert account.time <= 1000.0 + 40.0 + 60.0 + 5.0


def test_where_the_provider_keeps_our_key_or_our_file_nothing_else_is_looked_at() -> None:
    others = [listed("stranger", key="other-b0", input_file="file-2"), listed("nobodys")]
    by_key = Account(listed=[[*others, listed("ours", 7, done=False, key="run-b0")]], limits=UPLOADS)
    by_file = Account(listed=[[*others, listed("ours", 7, done=False, input_file="file-1")]], limits=UPLOADS)
    neither = Account(listed=[others], limits=UPLOADS)
    for account in (by_key, by_file):
        found = account.find(file_id="file-1")
        assert found is not None and found.id == "ours" and account.asked == []
    assert neither.find(file_id="file-1") is None and neither.find() is None


def test_the_newest_batch_is_the_first_that_is_listed() -> None:
    account = Account(listed=[[listed("new"), listed("old")], []])
    newest = partial(newest_batch_id, cast(BatchProvider, account))
    assert asyncio.run(newest()) == "new" and asyncio.run(newest()) is None


@pytest.mark.parametrize(("provider", "fault", "how"), drawn(KILLED, 6, "killed at every point"))
def test_killed_at_every_point_and_each_question_is_paid_once(
    provider: str, fault: str | None, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = 0
    for at in POINTS:
        faults = () if fault is None else (Fault(fault, at=1, on="create"),)
        with Emulator(faults=faults, lifecycle=Lifecycle(polls=1), timing=Timing(silence=0.2)) as emulator:
            for name, value in environment(emulator).items():
                monkeypatch.setenv(name, value)
            folder = tmp_path / str(at)
            spec = {
                "provider": provider,
                "folder": str(folder),
                "urls": environment(emulator),
                "count": COUNT,
                "turns": TURNS,
                "at": at,
                "how": how,
                "plan": {"timeout": 2.0},
            }
            was_killed = killed(spec)
            said = play(provider, folder, count=COUNT, turns=TURNS, timeout=0.1)
            paid = emulator.ledger().paid()
            assert [len(turns) for turns in said] == [TURNS] * COUNT
            assert all("conversation" in turns[0] for turns in said), said
            assert sorted(paid.values()) == [1] * COUNT * TURNS, f"killed at {at}: {paid}"
            assert len(paid_bodies(emulator.ledger())) == COUNT * TURNS
        if not was_killed:
            break
        points += 1
    assert 7 <= points < len(POINTS)


def test_a_process_that_dies_again_and_again_pays_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three turns; the process is killed at its third sync each time until it succeeds."""
    with Emulator(lifecycle=Lifecycle(polls=2)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        spec = {
            "provider": "openai",
            "folder": str(tmp_path),
            "urls": environment(emulator),
            "count": 4,
            "turns": 3,
            "at": 4,
            "how": "after",
            "plan": {"timeout": 0.1},
        }
        deaths = 0
        while killed(spec):
            deaths += 1
            assert deaths < 40
        assert deaths >= 3
        said = play("openai", tmp_path, count=4, turns=3)
        assert [len(turns) for turns in said] == [3] * 4
        assert sorted(emulator.ledger().paid().values()) == [1] * 12


def test_calls_under_way_at_a_crash_are_all_that_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Emulator(timing=Timing(latency=0.05)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        spec = {
            "provider": "anthropic",
            "folder": str(tmp_path),
            "urls": environment(emulator),
            "count": 6,
            "turns": 2,
            "at": 3,  # calls are written down, and no answer
            "how": "before",
            "plan": {"mode": "concurrent", "max_concurrent": 3},
        }
        assert killed(spec)
        with caplog.at_level("INFO", logger="r2v"):
            said = play("anthropic", tmp_path, count=6, turns=2, mode="concurrent")
        paid = emulator.ledger().paid()
        rows = map(json.loads, (tmp_path / "journal.jsonl").read_text().splitlines())
        lost = {turn_of(row["id"]) for row in rows if row["row"] == "lost"}
        repeated = {turn for turn, times in paid.items() if times > 1}
        assert [len(turns) for turns in said] == [2] * 6
        assert len(paid) == 12 and max(paid.values()) <= 2
        assert repeated <= lost and 1 <= len(lost) <= 3
        assert f"may have been billed: calls={len(lost)} " in caplog.text


def test_two_processes_do_not_share_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator() as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        with lease(tmp_path / "journal.lease"), pytest.raises(LeaseConflict, match=f"pid {os.getpid()}"):
            play("openai", tmp_path)
        assert not emulator.ledger().bills
