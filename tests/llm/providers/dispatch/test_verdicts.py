"""If every request is refused before the first answer, the run ends, and none is remembered as refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.verdicts import IN_A_ROW, Refusals
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import CallResult, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, make_request
from r2v.llm.providers.remote import ProviderRemote, Unanswered
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.talk import HeldLifecycle, environment, play, remote


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_run_whose_first_answers_are_all_refused_stops_with_the_reason(
    provider: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty conversations, all refused by the provider: the requests are not at fault."""
    refusal = Fault("line_400") if mode == "batch" else Fault("call_400", on="sync")
    with Emulator(faults=[refusal], lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(EnvironmentFault, match="no request was answered, and all were refused, first: (400|inval)"):
            play(provider, tmp_path, count=40, turns=1, mode=mode)
        assert not emulator.ledger().bills
    with Emulator(lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        said = play(provider, tmp_path, count=40, turns=1, mode=mode)
        refused = sum(turns == ["!final"] for turns in said)
        assert refused < 10 and sorted(emulator.ledger().paid().values()) == [1] * (40 - refused)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_one_answer_among_refusals_and_the_run_goes_on(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = tuple(n for n in range(1, 31) if n != 7)
    with Emulator(faults=[Fault("line_400", at=refused)], lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        said = play(provider, tmp_path, count=30, turns=1)
    assert sum(turns == ["!final"] for turns in said) == 29


REFUSED = RequestVerdict(kind="fatal", reason="400: no", billed=False)


def ask(number: int) -> Any:
    messages = (Message(role="user", content=f"question {number}"),)
    return make_request("0123abcd", Request(messages=messages, key=("k", number)), {"messages": [], "number": number})


def test_an_answer_that_was_asked_later_settles_what_was_refused_before() -> None:
    refusals, first, early, later = Refusals(), ask(0), ask(1), ask(2)
    refusals.sent([first, early])
    refusals.hold(first, REFUSED, None)
    assert refusals.answered(early) == [], "asked before the refusal came: the account may have run dry since"
    refusals.sent([later])
    assert refusals.answered(later) == [(first, REFUSED, None)] and not refusals.take()


def test_the_account_is_suspected_when_ten_are_refused_or_all_that_run() -> None:
    refusals = Refusals()
    for number in range(IN_A_ROW - 1):
        refusals.hold(ask(number), REFUSED, None)
    assert not refusals.suspects_account(in_flight=50) and refusals.suspects_account(in_flight=IN_A_ROW - 1)
    refusals.hold(ask(0), REFUSED, None)
    assert not refusals.suspects_account(in_flight=50), "a conversation counts once"
    refusals.hold(ask(IN_A_ROW), REFUSED, None)
    assert refusals.suspects_account(in_flight=50) and refusals.first_reason == "400: no"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    @contextmanager
    def served(*faults: Fault, lifecycle: Lifecycle | None = None) -> Iterator[Emulator]:
        with Emulator(faults=faults, lifecycle=lifecycle or Lifecycle(polls=1)) as emulator:
            for name, value in environment(emulator).items():
                monkeypatch.setenv(name, value)
            yield emulator

    return served


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_an_account_that_runs_dry_stops_the_run_and_nothing_is_refused_for_good(
    provider: str, serve: Any, tmp_path: Path
) -> None:
    dry = Fault("credit_exhausted", on="sync", at=tuple(range(9, 60)))
    with serve(dry) as emulator:
        with pytest.raises(EnvironmentFault, match="check the account"):
            play(provider, tmp_path, count=12, turns=2, mode="concurrent", max_concurrent=4)
        paid = len(emulator.ledger().bills)
    with serve() as emulator:
        said = play(provider, tmp_path, count=12, turns=2, mode="concurrent")
        assert len(emulator.ledger().bills) == 24 - paid, "what was answered is not asked again"
    assert all(len(turns) == 2 and not turns[-1].startswith("!") for turns in said)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_request_that_is_refused_alone_fails_alone(provider: str, serve: Any, tmp_path: Path) -> None:
    with serve(Fault("call_400", on="sync", at=5)):
        said = play(provider, tmp_path, count=6, turns=2, mode="concurrent")
    assert [turns[-1] for turns in said].count("!final") == 1 and sum(len(turns) == 2 for turns in said) >= 5


def test_a_limit_that_never_passes_is_told_and_ends_the_run(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serve(Fault("429_retry_after_300", on="sync", at=tuple(range(3, 40)))),
        caplog.at_level(logging.WARNING, logger="r2v"),
        pytest.raises(EnvironmentFault, match="asks to wait for 5 min.*100 s|asks to wait for 5 min.*2 min"),
    ):
        play("openai", tmp_path, count=4, turns=1, mode="concurrent", outage_seconds=100.0)


class Gateway:
    """A provider that refuses one question and never answers another."""

    name = "gateway"

    def request_body(self, request: Request) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": request.messages[0].text}], "max_tokens": 9}

    async def call(self, request: ProviderRequest) -> CallResult:
        asked = request.body["messages"][0]["content"]
        if asked == "refused":
            raise ProviderFault("422: no", kind="fatal", status=422, verdict=REFUSED)
        if asked == "broken":
            raise ProviderFault("500: it broke", kind="retry", status=500)
        return CallResult(verdict=RequestVerdict(kind="ok", text="ok", tokens=TokenCounts(fresh=1, output=1)))

    async def close(self) -> None:
        pass


def test_a_refusal_that_is_held_ends_when_the_last_request_beside_it_is_given_up(tmp_path: Path) -> None:
    rate = Rate(model="m", input=1.0, output=1.0, batch=1.0, cached=1.0, write_5m=1.0, write_1h=1.0)
    policy = DispatchPolicy(mode="concurrent", attempts=2)
    waves = Waves(max_conversations=2)
    model = waves.model(ProviderRemote(Gateway(), rate, tmp_path, policy, scope={"test": "held"}))

    async def ask(text: str) -> bool:
        with pytest.raises(Unanswered) as told:
            await model.reply(Request(messages=(Message(role="user", content=text),), key=(text,), max_tokens=9))
        return told.value.final

    assert waves.run([partial(ask, "refused"), partial(ask, "broken")]) == [True, False]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_process_that_only_collects_asks_no_question_about_what_was_refused(
    provider: str, serve: Any, tmp_path: Path
) -> None:
    lifecycle = HeldLifecycle()
    with serve(Fault("line_400", at=1), lifecycle=lifecycle) as emulator:
        backend = remote(provider, tmp_path, mode="batch")

        async def send_and_stop() -> None:
            async with backend:
                backend.send([Request(messages=(Message(role="user", content="hi"),), key=("k", 1), max_tokens=9)])
                while not backend.tracker.state.batch_ids:
                    await asyncio.sleep(0.01)

        asyncio.run(send_and_stop())
        lifecycle.release()
        asyncio.run(remote(provider, tmp_path, mode="batch").collect_batches())
        assert not emulator.ledger().bills, "a plain question would be billed"
