"""Outages on a virtual clock and at real dead addresses: awaited, reported, never booked as money; without a provider
from the start the run ends in one line."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.emulator import Emulator
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.provider import CallResult, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.storage import record
from r2v.wire.exchange import TokenCounts
from tests.llm.jumping import JumpingLoop
from tests.llm.talk import MODELS, environment, guarded, play

MINUTE = 60.0


class Absent:
    """A provider that is away for some time of a virtual clock. `down`: the error of a call and of a ping then."""

    name = "openai"

    def __init__(self, loop: JumpingLoop, begin: float, end: float, down: ProviderFault) -> None:
        self._loop, self._begin, self._end, self._down = loop, begin, end, down
        self.calls, self.refused, self.pings = 0, 0, 0

    def request_body(self, request: Request) -> Mapping[str, Any]:
        return {"messages": [{"role": m.role, "content": m.content} for m in request.messages], "max_tokens": 50}

    def _require(self) -> None:
        if self._begin <= self._loop.now < self._end:
            raise self._down

    async def call(self, request: ProviderRequest) -> CallResult:
        await asyncio.sleep(10.0)
        try:
            self._require()
        except ProviderFault:
            self.refused += 1
            raise
        self.calls += 1
        return CallResult(verdict=RequestVerdict(kind="ok", text="conversation", tokens=TokenCounts(fresh=9, output=1)))

    async def ping(self) -> None:
        self.pings += 1
        self._require()

    async def close(self) -> None:
        pass


def unsent() -> ProviderFault:
    return ProviderFault("no connection to api.openai.com: Name or service not known", kind="retry", sent=False)


def through(absent: Absent, loop: JumpingLoop, folder: Path, **policy: Any) -> list[list[str]]:
    """Play 20 conversations of 3 turns; return their replies."""
    settings = DispatchPolicy(mode="concurrent", max_concurrent=8, **policy)
    remote = ProviderRemote(
        absent, rate_of("openai", MODELS["openai"]), folder, settings, scope={}, clock=loop.clock, sync=lambda fd: None
    )
    waves = Waves(max_conversations=20)
    model = waves.model(remote)
    return loop.play(waves.play(partial(guarded, model, number, 3) for number in range(20)))


def rows_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [row for row in rows if row["row"] == kind]


def test_eight_minutes_without_a_connection_are_ridden_out_and_cost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = JumpingLoop()
    absent = Absent(loop, 15.0, 15.0 + 8 * MINUTE, unsent())
    said = through(absent, loop, tmp_path, max_usd=0.01)
    assert [len(turns) for turns in said] == [3] * 20 and absent.calls == 60
    assert rows_of(tmp_path, "lost") == [], "what was never sent is not booked as money"
    assert 15.0 + 8 * MINUTE < loop.now < 15.0 + 12 * MINUTE
    lines = [record.message for record in caplog.records]
    assert [line for line in lines if "nothing is sent until it answers" in line] == [
        "  provider unreachable; nothing is sent until it answers: provider=openai at_most=4.0 h "
        "reason=no connection to api.openai.com: Name or service not known"
    ]
    assert len([line for line in lines if "reachable again: provider=openai after=8 min" in line]) == 1
    assert absent.refused <= 8, "those that were out; nothing more is sent during an outage"


def test_an_outage_of_hours_is_told_every_ten_minutes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loop = JumpingLoop()
    said = through(Absent(loop, 15.0, 3 * 60 * MINUTE, unsent()), loop, tmp_path)
    assert [len(turns) for turns in said] == [3] * 20
    assert 15 <= len([r for r in caplog.records if "provider still unreachable" in r.message]) <= 18


SLOW = ProviderFault("429: slow down", kind="retry", status=429, retry_after=90.0)


@pytest.mark.parametrize("down", [ProviderFault("503: overloaded", kind="retry", status=503), SLOW])
def test_a_wait_of_minutes_enters_the_record_of_its_job_until_it_is_over(
    down: ProviderFault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(record.FOLDER, str(tmp_path / "record"))
    loop = JumpingLoop()
    through(Absent(loop, 15.0, 15.0 + 8 * MINUTE, down), loop, tmp_path)
    waits = [json.loads(line) for line in (tmp_path / "record" / record.EVENTS).read_text().splitlines()]
    assert {one["wait"] for one in waits} == {"openai"}
    assert waits[0]["why"].startswith(down.reason) and waits[0]["until"] > "1970-01-01T00:01"
    assert [one["why"] for one in waits].index(None) == len(waits) - 1


def test_servers_that_answer_500_for_minutes_are_an_outage_and_no_request_is_given_up(tmp_path: Path) -> None:
    loop = JumpingLoop()
    absent = Absent(loop, 15.0, 15.0 + 8 * MINUTE, ProviderFault("500: broken", kind="retry", status=500))
    said = through(absent, loop, tmp_path)
    assert [len(turns) for turns in said] == [3] * 20
    lost = rows_of(tmp_path, "lost")
    assert len(lost) == absent.refused <= 8 + 4, "each may have been carried out, and few were sent"


def test_an_answer_to_a_call_under_way_ends_an_outage_that_has_just_begun(tmp_path: Path) -> None:
    """As when one connection of eight was late on a busy machine."""
    loop = JumpingLoop()

    class Late(Absent):
        async def call(self, request: ProviderRequest) -> CallResult:
            if not self.refused and "conversation 0" in json.dumps(request.body):
                self.refused += 1
                await asyncio.sleep(9.5)
                raise unsent()
            return await super().call(request)

    late = Late(loop, -2.0, -1.0, unsent())
    said = through(late, loop, tmp_path)
    assert [len(turns) for turns in said] == [3] * 20 and (late.refused, late.calls) == (1, 60)


def test_a_request_that_fails_alone_for_ever_is_given_up_as_before(tmp_path: Path) -> None:
    """The provider answers a ping, so the fault is the request's own."""
    loop = JumpingLoop()

    class Poison(Absent):
        async def call(self, request: ProviderRequest) -> CallResult:
            if "conversation 0" in json.dumps(request.body):
                self.refused += 1
                raise ProviderFault("500: broken", kind="retry", status=500)
            return await super().call(request)

    poison = Poison(loop, -2.0, -1.0, unsent())
    said = through(poison, loop, tmp_path)
    assert said[0] == ["!open"] and [len(turns) for turns in said[1:]] == [3] * 19
    assert 4 <= poison.refused <= 8


def test_patience_ends_with_5_and_everything_kept(tmp_path: Path) -> None:
    loop = JumpingLoop()
    absent = Absent(loop, 15.0, 1e9, unsent())
    with pytest.raises(EnvironmentFault, match=r"Name or service not known, for \d+ min; everything answered is kept"):
        through(absent, loop, tmp_path, outage_seconds=20 * MINUTE)
    assert len(rows_of(tmp_path, "answer")) == absent.calls > 0
    assert loop.now < 25 * MINUTE


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("mode", ["batch", "concurrent"])
@pytest.mark.parametrize("where", ["http://127.0.0.1:{port}/v1", "http://no-such-host.invalid/v1"])
def test_a_dead_address_ends_the_run_with_its_cause_and_a_bill_of_zero(
    where: str, mode: str, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with Emulator() as emulator:
        settings = environment(emulator)
    for name, value in settings.items():
        monkeypatch.setenv(name, where.format(port=port) if name.endswith("_URL") else value)
    with pytest.raises(EnvironmentFault, match=f"{provider}: no connection to .*check the network and the endpoint"):
        play(provider, tmp_path, mode=mode, reach_seconds=0.3, max_usd=0.01)
    assert rows_of(tmp_path, "lost") == []
    # the cap reserves nothing for it: the same command goes on once there is a provider
    with Emulator() as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        said = play(provider, tmp_path, mode=mode, max_usd=0.01)
        assert sorted(emulator.ledger().paid().values()) == [1] * 8
    assert [len(turns) for turns in said] == [2] * 4
