"""The call before a run: its refusal ends the run with nothing else sent, and its cost is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle, Timing
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.openai import OpenAI
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.provider import CallResult, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.waves import Waves
from tests.llm.talk import MODELS, QUICK, converse, environment, play, remote

BOTH = pytest.mark.parametrize("provider", ["openai", "anthropic"])
MODES = pytest.mark.parametrize("mode", ["batch", "concurrent"])

Serve = Callable[..., AbstractContextManager[Emulator]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Serve:
    @contextmanager
    def serve(*faults: Fault, **settings: Any) -> Any:
        with Emulator(faults=faults, **({"lifecycle": Lifecycle(polls=1)} | settings)) as emulator:
            for name, value in environment(emulator).items():
                monkeypatch.setenv(name, value)
            yield emulator

    return serve


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


@BOTH
@MODES
def test_it_is_one_call_that_the_bill_counts_and_a_resumed_run_makes_none(
    provider: str, mode: str, served: Serve, tmp_path: Path
) -> None:
    with served() as emulator:
        for _ in range(2):
            play(provider, tmp_path, count=3, turns=1, mode=mode, preflight=True)
        bills = emulator.ledger().bills
    assert (
        len(bills) == 4
        and bills[0].mode == "sync"
        and sum(bill.mode == "sync" for bill in bills) == (1 if mode == "batch" else 4)
    )
    assert bills[0].tokens_in < 30 and bills[0].tokens_out <= 16
    counted = [row for row in rows_of(tmp_path) if row.get("kind") == "preflight"]
    told = json.loads((tmp_path / "progress.json").read_text())
    assert len(counted) == 1 and 0 < counted[0]["usd"] < told["usd"]
    paid = sum(row["usd"] for row in rows_of(tmp_path) if row["row"] in ("answer", "failed"))
    assert told["usd"] == pytest.approx(paid, abs=1e-6)


@BOTH
@MODES
def test_a_parameter_that_the_model_does_not_know_stops_the_run_for_nothing(
    provider: str, mode: str, served: Serve, tmp_path: Path
) -> None:
    with served(Fault("call_400", on="sync", at=1)) as emulator:
        with pytest.raises(
            EnvironmentFault, match="a call before the run was refused: 400: .*Unknown parameter"
        ) as told:
            play(provider, tmp_path, count=3, turns=1, mode=mode, preflight=True)
        assert not emulator.ledger().bills and not emulator.batches() and "\n" not in str(told.value)
        # once repaired, the same command goes on
        said = play(provider, tmp_path, count=3, turns=1, mode=mode, preflight=True)
        assert all("conversation" in turns[0] for turns in said) and len(emulator.ledger().bills) == 4
    assert not [row for row in rows_of(tmp_path) if row["row"] == "lost"]


@MODES
@pytest.mark.parametrize(("provider", "model"), [("openai", "gpt-3.5-turbo"), ("anthropic", "claude-3-5-haiku")])
def test_a_retired_model_stops_the_run_for_nothing(
    provider: str, model: str, mode: str, served: Serve, tmp_path: Path
) -> None:
    with served() as emulator:
        with pytest.raises(EnvironmentFault, match="404: .*(does not exist|not_found|model)"):
            play(provider, tmp_path, count=3, turns=1, mode=mode, preflight=True, models={provider: model})
        assert not emulator.ledger().bills and not emulator.batches()


@BOTH
@MODES
@pytest.mark.parametrize(
    ("fault", "told"), [("401", "check the account and the key"), ("credit_exhausted", "check the")]
)
def test_a_key_or_an_account_that_is_refused(
    provider: str, mode: str, fault: str, told: str, served: Serve, tmp_path: Path
) -> None:
    with served(Fault(fault)) as emulator:
        with pytest.raises(EnvironmentFault, match=told):
            play(provider, tmp_path, count=3, turns=1, mode=mode, preflight=True)
        assert not emulator.ledger().bills and not emulator.batches()


@BOTH
def test_a_passing_fault_is_tried_again(provider: str, served: Serve, tmp_path: Path) -> None:
    with served(Fault("500", on="sync", at=1), Fault("429_retry_after_2", on="sync", at=2)) as emulator:
        play(provider, tmp_path, count=2, turns=1, preflight=True)
        assert len(emulator.ledger().bills) == 3


class Talkative(OpenAI):
    """A model that needs room for more than a word."""

    async def call(self, request: ProviderRequest) -> CallResult:
        if request.max_tokens < 50:
            raise ProviderFault("400: max_tokens or model output limit was reached", kind="fatal", status=400)
        return await super().call(request)


def test_a_model_that_refuses_so_short_a_reply_has_looked_at_everything_else(served: Serve, tmp_path: Path) -> None:
    with served() as emulator:
        rate, waves = rate_of("openai", MODELS["openai"]), Waves(max_conversations=2)
        policy = DispatchPolicy(**{**QUICK, "preflight": True})
        model = waves.model(ProviderRemote(Talkative(rate), rate, tmp_path, policy, scope={"test": "a"}))
        assert len(waves.run(partial(converse, model, number, 1) for number in range(2))) == 2
        assert len(emulator.ledger().bills) == 3, "asked again with the run's own limit"
    first, again = (row for row in rows_of(tmp_path) if row["row"] == "failed")
    assert (first["kind"], first["usd"], again["kind"]) == ("retry", 0.0, "preflight")


def test_a_cap_holds_for_it_too(served: Serve, tmp_path: Path) -> None:
    with served() as emulator:
        with pytest.raises(EnvironmentFault, match="the next request may cost"):
            play("openai", tmp_path, count=2, turns=1, preflight=True, max_usd=1e-7)
        assert not emulator.ledger().bills


@MODES
def test_killed_silence_after_the_commit_is_booked_at_its_worst_case(mode: str, served: Serve, tmp_path: Path) -> None:
    with served(Fault("commit_then_reset", on="sync", at=1), timing=Timing(silence=0.1)) as emulator:
        play("openai", tmp_path, count=2, turns=1, mode=mode, preflight=True)
        assert len(emulator.ledger().bills) == 4, "the trial was carried out twice, and once confirmed"
    assert len([row for row in rows_of(tmp_path) if row["row"] == "lost"]) == 1


def test_four_that_begin_together_make_one_call_between_them(served: Serve, tmp_path: Path) -> None:
    async def one(number: int) -> object:
        waves = Waves(max_conversations=2)
        model = waves.model(
            remote("openai", tmp_path / str(number), project=tmp_path, mode="concurrent", preflight=True)
        )
        return await waves.play(partial(converse, model, 10 * number + n, 1) for n in range(2))

    async def together() -> None:
        await asyncio.gather(*map(one, range(4)))

    with served() as emulator:
        asyncio.run(together())
        assert len(emulator.ledger().bills) == 4 * 2 + 1
