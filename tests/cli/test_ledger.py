"""`r2v providers ledger`: one line a journal, and their sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger


def test_the_table_holds_what_is_closed_gone_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["providers", "ledger"]) == 0
    assert capsys.readouterr().out == "0 journals, 0 answers, $0.0000 spent or reserved\n"
    ledger, scope = ProjectLedger(tmp_path), {"provider": "openai", "model": "m"}
    for run, is_open, usd, purse in (
        ("0a", False, 1.5, "desk_noisy"),
        ("0b", True, 0.0, "runs"),
        ("0c", False, 0.25, "runs"),
    ):
        ledger.write(
            JournalEntry(run=run, folder=f"runs/{run}", purse=purse, scope=scope, open=is_open, usd=usd, answered=3)
        )
    for run in ("0a", "0b"):
        (tmp_path / "runs" / run).mkdir(parents=True)
    rows = '{"row":"open","version":1,"run":"0b","scope":{}}\n{"row":"call","id":"0b-c-0-0","usd":0.5}\n'
    (tmp_path / "runs/0b/journal.jsonl").write_text(rows)
    assert main(["providers", "ledger"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines[1:-1]] == [
        ["runs/0a", "desk_noisy", "openai/m", "3", "1.5000"],
        ["runs/0b", "itself", "openai/m", "0", "0.5000"],
        ["runs/0c", "itself", "openai/m", "3", "0.2500"],
    ]
    assert [line.split(maxsplit=5)[5] for line in lines[1:-1]] == ["closed", "its writer was killed", "gone"]
    assert lines[-1] == "3 journals, 6 answers, $2.2500 spent or reserved"


def test_the_cap_of_the_project_is_set_shown_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["providers", "ledger", "--max-usd", "12.5"]) == 0
    assert "0 answers, $0.0000 spent or reserved of $12.50, the cap of all processes" in capsys.readouterr().out
    assert ProjectLedger(tmp_path).cap == 12.5
    assert main(["providers", "ledger", "--no-max-usd"]) == 0
    assert "cap" not in capsys.readouterr().out and ProjectLedger(tmp_path).cap is None
    assert main(["providers", "ledger", "--max-usd", "0"]) == 2


def test_a_damaged_entry_is_one_line_and_exit_code_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs/.replies").mkdir(parents=True)
    (tmp_path / "outputs/.replies/0a.json").write_text("{")
    assert main(["providers", "ledger"]) == 3
    assert "outputs/.replies/0a.json" in capsys.readouterr().err.splitlines()[-1]


def test_a_damaged_cap_is_one_line_and_never_no_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["providers", "ledger", "--max-usd", "12.5"]) == 0
    cap = tmp_path / "outputs/.replies/project-cap"
    cap.write_text(cap.read_text().replace("12.5", "99.5"))
    assert main(["providers", "ledger"]) == 3
    assert "outputs/.replies/project-cap" in capsys.readouterr().err.splitlines()[-1]
