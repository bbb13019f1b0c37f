"""`r2v providers status | reconcile | forget`, on journals that the emulator's batches left."""

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
        reserved = read_journal(RUN).state.reserved
        assert main(["providers", "forget", batch]) == 0
        assert "3 of its 3 requests have no answer and are asked anew" in capsys.readouterr().out
        state = read_journal(RUN).state
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
    paid = read_journal(RUN).state.spent
    with (RUN / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"row": "call", "id": "x", "usd": 1.0})[:-3])
    assert read_journal(RUN).state.spent == paid > 0
