"""`r2v providers status | reconcile | forget | ledger`, on journals of the emulator's batches and others."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.errors import EnvironmentFault, InputError, Interrupted
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.openai import OpenAI
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.providers.spending.journal_report import find_batch, find_journals, read_journal, report
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger
from r2v.llm.waves import Waves
from tests.llm.talk import MODELS, QUICK, converse, environment, play

RUN = Path("data/runs/run-1/provider")


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def point_to(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(emulator).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_batch_whose_results_are_archived_is_given_up_alone(
    provider: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Emulator(faults=[Fault("archived", at=1)], lifecycle=Lifecycle(polls=1)) as emulator:
        point_to(emulator, monkeypatch)
        with pytest.raises(EnvironmentFault, match="give this batch up alone by `r2v providers forget") as told:
            play(provider, RUN, count=3, turns=1)
        batch = str(told.value).split("`r2v providers forget ")[1].split("`")[0]
        assert main(["providers", "status", "run-1"]) == 0
        shown = capsys.readouterr().out
        assert f"open  {batch}: ended, its results not all read; 0 of 3 requests have a result" in shown
        reserved = read_journal(RUN).reserved
        assert main(["providers", "forget", batch]) == 0
        assert "3 of its 3 requests have no answer and are asked anew" in capsys.readouterr().out
        state = read_journal(RUN)
        assert not state.batches and state.lost_usd == pytest.approx(reserved) and reserved > 0
        said = play(provider, RUN, count=3, turns=1)
        assert all("conversation" in turns[0] for turns in said)
        assert sorted(emulator.ledger().paid().values()) == [2, 2, 2], "those alone, whose answers are gone"
    assert "  open  nothing" in list(report(RUN))


def test_reconcile_brings_home_what_has_ended_and_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Emulator(lifecycle=Lifecycle(polls=1)) as emulator:
        point_to(emulator, monkeypatch)
        rate = rate_of("openai", MODELS["openai"])
        scope = {"provider": "openai", "model": MODELS["openai"]}
        policy = DispatchPolicy(**{**QUICK, "poll_seconds": 600.0})

        async def leaving() -> list[str]:
            import asyncio

            while not RUN.exists() or b'"created"' not in (RUN / "journal.jsonl").read_bytes():
                await asyncio.sleep(0.01)
            raise Interrupted("time is up")

        class Unpolled(OpenAI):
            async def retrieve_batch(self, batch_id: str) -> object:  # type: ignore[override]
                raise Interrupted("time is up")

        waves = Waves(max_conversations=9)
        model = waves.model(ProviderRemote(Unpolled(rate), rate, RUN, policy, scope=scope))
        with pytest.raises(Interrupted, match="time is up"):
            waves.run([*(partial(converse, model, n, 1) for n in range(3)), leaving])
        assert main(["providers", "status"]) == 0
        assert "at the provider; 0 of 3 requests have a result" in capsys.readouterr().out
        assert main(["providers", "reconcile", "run-1"]) == 0
        shown = capsys.readouterr().out
        assert "for 3 answers (0 requests refused)" in shown and "open  nothing" in shown
        assert sorted(emulator.ledger().paid().values()) == [1, 1, 1]


def test_what_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="run-9: no journal of a provider's requests"):
        find_journals(Path(), "run-9")
    assert main(["providers", "status", "run-9"]) == 3
    with Emulator(lifecycle=Lifecycle(polls=1)) as emulator:
        point_to(emulator, monkeypatch)
        play("openai", RUN, count=1, turns=1)
    with pytest.raises(InputError, match="batch_x: no journal of this project holds such a batch open; open: none"):
        find_batch(Path(), "batch_x")
    (RUN / "journal.jsonl").write_text("no row\n")
    with pytest.raises(InputError, match=r"journal.jsonl:1: not a row of a journal"):
        read_journal(RUN)


def test_a_line_that_is_being_written_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(lifecycle=Lifecycle(polls=1)) as emulator:
        point_to(emulator, monkeypatch)
        play("openai", RUN, count=2, turns=1)
    paid = read_journal(RUN).spent
    with (RUN / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"row": "call", "id": "x", "usd": 1.0})[:-3])
    assert read_journal(RUN).spent == paid > 0


def test_the_table_holds_what_is_closed_gone_and_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers", "ledger"]) == 0
    assert capsys.readouterr().out == "0 journals, 0 answers, $0.0000 spent or reserved\n"
    ledger, scope = ProjectLedger(tmp_path), {"provider": "openai", "model": "m"}
    for run, is_open, usd, payer in (
        ("0a", False, 1.5, "desk_noisy"),
        ("0b", True, 0.0, "runs"),
        ("0c", False, 0.25, "runs"),
    ):
        ledger.write(
            JournalEntry(run=run, folder=f"runs/{run}", payer=payer, scope=scope, open=is_open, usd=usd, answered=3)
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


def test_the_cap_of_the_project_is_set_shown_and_taken_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers", "ledger", "--max-usd", "12.5"]) == 0
    assert "0 answers, $0.0000 spent or reserved of $12.50, the cap of all processes" in capsys.readouterr().out
    assert ProjectLedger(tmp_path).cap == 12.5
    assert main(["providers", "ledger", "--no-max-usd"]) == 0
    assert "cap" not in capsys.readouterr().out and ProjectLedger(tmp_path).cap is None
    assert main(["providers", "ledger", "--max-usd", "0"]) == 2


def test_a_damaged_entry_is_one_line_and_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outputs/.replies").mkdir(parents=True)
    (tmp_path / "outputs/.replies/0a.json").write_text("{")
    assert main(["providers", "ledger"]) == 3
    assert "outputs/.replies/0a.json" in capsys.readouterr().err.splitlines()[-1]


def test_a_damaged_cap_is_one_line_and_never_no_cap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers", "ledger", "--max-usd", "12.5"]) == 0
    cap = tmp_path / "outputs/.replies/project-cap"
    cap.write_text(cap.read_text().replace("12.5", "99.5"))
    assert main(["providers", "ledger"]) == 3
    assert "outputs/.replies/project-cap" in capsys.readouterr().err.splitlines()[-1]
