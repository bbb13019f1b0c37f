"""kill -9 at every journal point of a batch, under every ambiguous fault: the provider's ledger shows each question
paid once, and no answer is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle, Timing
from r2v.emulator.ledger import turn_of
from r2v.errors import LeaseConflict
from r2v.storage.lease import lease
from tests.llm.talk import environment, killed, play

COUNT, TURNS = 3, 1
AMBIGUOUS = ("commit_then_500", "commit_then_529", "commit_then_reset", "commit_then_silence")
POINTS = range(1, 12)
"""A batch that is made at once has 8 syncs (7 without an upload), one that is looked for has more."""


@pytest.mark.parametrize(
    ("fault", "how"), [*((fault, how) for fault in (None, *AMBIGUOUS) for how in ("after", "before")), (None, "torn")]
)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
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
            assert len(emulator.ledger().paid_bodies()) == COUNT * TURNS
        if not was_killed:
            break
        points += 1
    assert 7 <= points < len(POINTS)


def test_a_process_that_dies_again_and_again_pays_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three turns, the process killed at its third sync each time until it comes through."""
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
            "at": 4,
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
        assert f"{len(lost)} direct calls were in flight when the last process ended" in caplog.text


def test_two_processes_do_not_share_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator() as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        with lease(tmp_path / "journal.lease"), pytest.raises(LeaseConflict, match=f"pid {os.getpid()}"):
            play("openai", tmp_path)
        assert not emulator.ledger().bills
