"""Journals written by an earlier version are resumed, and their answers are never paid again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from r2v.emulator import Emulator, Lifecycle
from r2v.errors import InputError
from tests.llm.talk import environment, play

MODELS = {"openai": "gpt-4o-mini", "anthropic": "claude-3-haiku"}
RECORDED = Path(__file__).with_name("journal_v1")
"""Per provider: the folder of a run of three conversations, killed in its second turn, and the emulator's folder of
that moment; both written before rows and fields of this package were renamed. The second batch is the one in flight."""


def record(provider: str, last_row: str, folder: Path) -> float:
    """Copy a recorded run as it was right after the last row of this kind; return the time of its kill."""
    shutil.copytree(RECORDED / provider, folder, dirs_exist_ok=True)
    journal = folder / "journal" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    last = max(number for number, row in enumerate(rows) if row["row"] == last_row)
    journal.write_text("".join(lines[: last + 1]))
    return max(row["at"] for row in rows if "at" in row) + 60.0


@pytest.mark.parametrize("last_row", ["sending", "created", "ended", "answer"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_recorded_journal_is_resumed_and_nothing_is_paid_again(
    provider: str, last_row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at = record(provider, last_row, tmp_path)
    with Emulator(
        folder=tmp_path / "emulator",
        lifecycle=Lifecycle(polls=1),
        clock=lambda: killed_at,
        models=["claude-3-haiku-20240307"],
    ) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        turns = play(provider, tmp_path / "journal", count=3, turns=2, models=MODELS)
        paid = emulator.ledger()
    assert [len(texts) for texts in turns] == [2] * 3
    assert sorted(paid.paid().values()) == [1] * 6
    assert len(paid.bills) == 6


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    (tmp_path / "journal.jsonl").write_text('{"row":"open","version":2,"run":"0123abcd","scope":{}}\n')
    with pytest.raises(InputError, match="is of version 2, this R2V writes 1"):
        play("openai", tmp_path)
