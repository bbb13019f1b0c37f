"""Coalescing of requests: cohorts on a virtual clock, and the rule by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from r2v.llm.providers.dispatch.coalescing import Coalescer, Cohort
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.provider import BatchLimits, BatchState, CallResult
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, ResultLine, make_request
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.jumping import JumpingLoop

HOUR = 3600.0
BODY = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 10}


def requests_at(*turns: int) -> list[ProviderRequest]:
    """Return one request for each of these turns."""
    made = []
    for number, turn in enumerate(turns):
        said = (Message(role="user", content="q"), Message(role="assistant", content="a")) * turn
        made.append(make_request("0123abcd", Request(messages=said, key=("k", number), max_tokens=10), BODY))
    return made


def cohorts(*turns: float, count: int = 10) -> list[Cohort]:
    return [Cohort(count=count, turn=turn) for turn in turns]


def held(waiting: Sequence[ProviderRequest], out: Sequence[Cohort], max_batch: int = 100) -> float:
    return Coalescer().hold(waiting, out, max_batch, typical_wait=1200.0, now=0.0)


def test_who_is_ahead_waits_for_those_behind_where_one_batch_can_carry_all() -> None:
    ahead, level, behind = requests_at(5, 5), requests_at(4, 4), requests_at(3, 3)
    out = cohorts(4.0)
    assert held(ahead, out) == 4 * 1200.0
    assert held(level, out) == held(behind, out) == 0.0, "they decide when the run ends"
    assert held(ahead, []) == 0.0, "nobody is out whom they could meet"
    assert held(ahead, out, max_batch=8) == 0.0, "12 need two batches, so nobody is met"
    assert held(ahead, cohorts(4.0, 9.0), max_batch=11) == 4 * 1200.0, "22 need two batches, and two are out"


def test_a_small_remainder_is_no_chain_of_its_own() -> None:
    ahead, level = requests_at(5, 5), requests_at(4, 4)
    assert held(ahead, cohorts(4.0), max_batch=9) == 4 * 1200.0, "all but 3 of 12 fit into one batch of 9"
    assert held(level, cohorts(4.0), max_batch=9) == 0.0, "at the same turn it would cost another wait"


def test_nobody_leaves_while_answers_are_read_and_nobody_waits_for_ever() -> None:
    coalescer = Coalescer()
    waiting = requests_at(1, 1)
    coalescer.reading = 1
    assert coalescer.hold(waiting, [], 100, 1200.0, 50.0) == 4800.0
    assert coalescer.hold(waiting, [], 100, 1200.0, 4849.0) == 1.0, "counted from when it was held first"
    assert coalescer.hold(waiting, [], 100, 1200.0, 4850.0) == 0.0
    coalescer.reading = 0
    assert coalescer.hold(waiting, cohorts(5.0), 100, 1200.0, 5000.0) == 0.0


class Lanes:
    """A provider whose n-th batch takes `hours[n]`; the last figure repeats."""

    name = "openai"
    limits = BatchLimits(requests=50_000, bytes=200_000_000, endpoint="", uploads=False)

    def __init__(self, loop: JumpingLoop, hours: Sequence[float]) -> None:
        self._loop, self._hours = loop, hours
        self.batches: list[list[str]] = []
        self._until: list[float] = []

    def request_body(self, request: Request) -> Mapping[str, Any]:
        return {"messages": [{"role": m.role, "content": m.content} for m in request.messages], "max_tokens": 50}

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        return {"custom_id": request.custom_id, "body": request.body}

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        number = len(self.batches)
        self.batches.append([json.loads(line)["custom_id"] for line in path.read_text().splitlines()])
        self._until.append(self._loop.now + HOUR * self._hours[min(number, len(self._hours) - 1)])
        return await self.retrieve_batch(str(number))

    async def list_batches(self) -> AsyncIterator[BatchState]:
        for number in reversed(range(len(self.batches))):
            yield await self.retrieve_batch(str(number))

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        count, done = len(self.batches[int(batch_id)]), self._loop.now >= self._until[int(batch_id)]
        return BatchState(id=batch_id, state="s", done=done, total=count, completed=count, files=("all",))

    async def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        for name in self.batches[int(state.id)]:
            verdict = RequestVerdict(kind="ok", text="yes", tokens=TokenCounts(fresh=9, output=1))
            yield ResultLine(custom_id=name, verdict=verdict)

    async def call(self, request: ProviderRequest) -> CallResult:
        raise AssertionError("batches were asked for")

    async def upload(self, path: Path) -> str:
        raise AssertionError("nothing is uploaded here")

    async def cancel_batch(self, batch_id: str) -> None:
        raise AssertionError("nothing is cancelled here")

    async def close(self) -> None:
        pass


def sizes_of(hours: Sequence[float], turns: Sequence[int], folder: Path, **policy: Any) -> tuple[list[int], float]:
    """Return the number of requests of each batch, and the hours of the whole run."""
    loop = JumpingLoop()
    provider = Lanes(loop, hours)
    settings = DispatchPolicy(mode="batch", **policy)
    remote = ProviderRemote(
        provider,
        rate_of("openai", "gpt-5.2"),
        folder,
        settings,
        scope={},
        clock=loop.clock,
        sync=lambda descriptor: None,
    )
    waves = Waves(max_conversations=len(turns))
    model = waves.model(remote)
    loop.play(waves.play(partial(talk, model, number, count) for number, count in enumerate(turns)))
    return [len(batch) for batch in provider.batches], loop.now / HOUR


async def talk(model: ChatModel, number: int, turns: int) -> None:
    for turn in range(turns):
        said = [Message(role="user", content=f"{number}")] + [Message(role="assistant", content="yes")] * turn
        await model.reply(Request(messages=tuple(said), key=("talk", number, turn), max_tokens=50))
        await asyncio.sleep(0)


def test_a_cohort_stays_one_however_many_syncs_its_answers_take(tmp_path: Path) -> None:
    """1,200 answers are journaled in three parts; conversations with the first ones wait until the last are read."""
    sizes, hours = sizes_of([1.0], [3] * 1200, tmp_path)
    assert sizes == [1200] * 3
    assert 3.0 <= hours < 3.2, "polls cost a fortieth, and no wait is lost"


def test_a_single_crowd_takes_as_long_as_its_waits(tmp_path: Path) -> None:
    """Without a limit of a batch's size a barrier is optimal, and a run is slower only by its polls."""
    waits = [0.33, 2.4, 0.1, 0.5, 7.0, 0.2]
    sizes, hours = sizes_of(waits, [2, 4, 6] * 20, tmp_path)
    assert sizes == [60, 60, 40, 40, 20, 20]
    assert sum(waits) < hours < 1.006 * sum(waits) + 6 * 12 / HOUR, "0.6 % at most, or a pause of 12 s for each"


def test_batches_of_a_limited_size_do_not_wait_for_the_slowest_of_a_turn(tmp_path: Path) -> None:
    """Two batches a turn, one of them slow in each: a barrier takes six hours."""
    sizes, hours = sizes_of([1.0, 3.0, 1.0, 1.0, 3.0], [2] * 20, tmp_path, batch_size=10)
    assert sizes == [10] * 4
    assert 4.0 <= hours < 4.1, "the quick half goes on alone, and so does the slow one"


def test_cohorts_that_drifted_apart_meet_when_one_batch_can_carry_them(tmp_path: Path) -> None:
    """Two batches of 10 at first, the second slower by a third. Half of the conversations end after a turn; the five
    that are a turn ahead then wait for the five behind, and all go on together."""
    sizes, hours = sizes_of([1.0, 1.3, 1.0], [5, 1] * 10, tmp_path, batch_size=10)
    assert sizes == [10, 10, 5, 5, 10, 10, 10]
    assert 5.3 <= hours < 5.7, "those behind never waited"
