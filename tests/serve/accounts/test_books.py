"""Books: each request is settled at its bill, or stays booked as unknown; caps are never exceeded."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest

from r2v.config import load
from r2v.llm.providers.spending.journal_report import read_journal
from r2v.llm.providers.teacher import teacher_rate
from r2v.serve.accounts.books import Books, CapReached
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.transport.endpoints import PATHS
from r2v.wire.exchange import TokenUsage
from r2v.wire.stream_facts import WireName
from tests.serve.stub import Seen, Served, Step, reply, served, stream, stub
from tests.serve.test_forwarding import post
from tests.serve.wires import USD, WIRES, body, events, whole, wire_reply


def booked(server: Served) -> tuple[float, float]:
    """Return (billed, unknown) USD in the journal, once nothing is in flight: a request is settled after its reply."""
    for _ in range(1000):
        state = read_journal(server.folder)
        if not state.calls:
            return state.spent, state.lost_usd
        time.sleep(0.01)
    raise AssertionError(f"in flight: {state.calls}")


def config_of(*overrides: str) -> Any:
    return load({"teacher": {"provider": "openai", "model_name": "gpt-6-luna"}}, list(overrides))


def with_books(folder: Path, act: Callable[[Books], Any], *overrides: str) -> Any:
    async def main() -> Any:
        config = config_of(*overrides)
        async with Books(folder / "served", config, teacher_rate(config.teacher), folder) as books:
            return await act(books)

    return asyncio.run(main())


def test_what_is_reserved_counts_until_it_is_settled(tmp_path: Path) -> None:
    async def act(books: Books) -> None:
        first = await books.reserve(0.6, key="k", session="s")
        with pytest.raises(CapReached, match="teacher.max_usd=1"):
            await books.reserve(0.6, key="k", session="s")
        await books.settle(first, 0.1)
        second = await books.reserve(0.6, key="k", session="s")
        await books.lost(second, "reset")
        assert books.committed("key", "k") == pytest.approx(0.7)

    with_books(tmp_path, act, "teacher.max_usd=1")
    state = read_journal(tmp_path / "served")
    assert (state.spent, state.lost_usd) == (0.1, 0.6)


@pytest.mark.parametrize("kind", ["key", "session", "day"])
def test_each_cap_holds_for_its_own_and_over_a_restart(kind: str, tmp_path: Path) -> None:
    names = {"key": "k", "session": "s"}

    async def act(books: Books) -> None:
        with pytest.raises(CapReached, match=f"max_usd_per_{kind}=1"):
            for _ in range(3):
                await books.settle(await books.reserve(0.5, **names), 0.4)
        if kind != "day":
            await books.reserve(0.5, **(names | {kind: "another"}))

    with_books(tmp_path, act, f"serve.max_usd_per_{kind}=1")

    async def again(books: Books) -> None:
        with pytest.raises(CapReached):
            await books.reserve(0.5, **names)

    with_books(tmp_path, again, f"serve.max_usd_per_{kind}=1")


def test_many_at_once_never_exceed_a_cap(tmp_path: Path) -> None:
    async def act(books: Books) -> int:
        async def one() -> bool:
            try:
                entry = await books.reserve(0.3, key="k", session="s")
            except CapReached:
                return False
            assert books.committed("session", "s") <= 1.0 + 1e-9
            await books.settle(entry, 0.2)
            return True

        return sum(await asyncio.gather(*(one() for _ in range(40))))

    assert 3 <= with_books(tmp_path, act, "serve.max_usd_per_session=1") <= 5


def test_a_killed_server_leaves_its_requests_booked_as_unknown(tmp_path: Path) -> None:
    async def act(books: Books) -> None:
        await books.reserve(0.25, key="k", session="s")

    with_books(tmp_path, act)

    async def again(books: Books) -> None:
        assert books.committed("key", "k") == 0.25

    with_books(tmp_path, again)
    state = read_journal(tmp_path / "served")
    assert (state.spent, state.lost_usd) == (0.0, 0.25)


@pytest.mark.parametrize(
    "fields,billed",
    [
        (
            [
                {"input_tokens": 27, "cache_read_input_tokens": 1000, "output_tokens": 1},
                {"input_tokens": 27, "cache_read_input_tokens": 1000, "output_tokens": 47},
            ],
            (1027, 47),
        ),
        (
            [{"input_tokens": 27, "cache_read_input_tokens": 1000, "output_tokens": 1}, {"output_tokens": 47}],
            (1027, 47),
        ),
        (
            [
                {"input_tokens": 27, "cache_read_input_tokens": 1000, "output_tokens": 1},
                {"input_tokens": 30, "output_tokens": 47},
            ],
            (1030, 47),
        ),
    ],
)
def test_the_last_value_of_each_cumulative_count_is_billed(
    fields: list[dict[str, int]], billed: tuple[int, int], tmp_path: Path
) -> None:
    start, end = fields
    pieces = [
        ("message_start", {"message": {"id": "m", "model": "big-1", "usage": start}}),
        ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": end}),
        ("message_stop", {}),
    ]
    lines = [f"event: {kind}\ndata: {json.dumps({'type': kind, **value})}\n\n".encode() for kind, value in pieces]
    with stub(lambda seen: stream(lines)) as provider, served(tmp_path, provider.url) as server:
        post(server.url, PATHS["messages"], body("messages", stream=True), server.auth)
    assert booked(server) == (pytest.approx((billed[0] + 4 * billed[1]) / 1e6), 0.0)


@pytest.mark.parametrize("total,output", [(2274, 266), (2008 + 266 + 261, 527)])
def test_thoughts_are_billed_once_as_the_total_says(total: int, output: int, tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 2008,
        "completion_tokens": 266,
        "total_tokens": total,
        "completion_tokens_details": {"reasoning_tokens": 261},
    }
    answer = json.loads(whole("chat")) | {"usage": usage}
    with stub(lambda seen: reply(answer)) as provider, served(tmp_path, provider.url) as server:
        post(server.url, PATHS["chat"], body("chat"), server.auth)
    assert booked(server)[0] == pytest.approx((2008 + 4 * output) / 1e6)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    "name,usd",
    [("gpt-6-luna-20260115", True), ("gpt-6-luna-2026-01-15", True), ("openai/gpt-6-luna", True), ("y", False)],
)
def test_a_model_is_priced_under_each_of_its_names(name: str, usd: bool, streams: bool, tmp_path: Path) -> None:
    answer = wire_reply(model=name)
    own = ("teacher.model_name=gpt-6-luna", "teacher.usd_in=null", "teacher.usd_out=null")
    with stub(lambda seen: stream(events("chat", answer)) if streams else reply(whole("chat", answer))) as provider:
        with served(tmp_path / "a", provider.url, *own) as server:
            made = post(server.url, PATHS["chat"], body("chat", model=name, stream=streams), server.auth)
        assert made.status_code == 200
        (row,) = read_traffic(server.folder)
        assert (row["usd"] is not None) == usd
        rate = teacher_rate(config_of("teacher.base_url=http://localhost/v1").teacher)
        assert not usd or row["usd"] == pytest.approx((100 * rate.input + 20 * rate.output) / 1e6)
        asked = len(provider.seen)
        with served(tmp_path / "b", provider.url, *own, "teacher.max_usd=100") as server:
            made = post(server.url, PATHS["chat"], body("chat", model=name, stream=streams), server.auth)
        assert (made.status_code, len(provider.seen) - asked) == ((200, 1) if usd else (400, 0))


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_without_usage_is_unknown_and_never_free(wire: WireName, tmp_path: Path) -> None:
    with (
        stub(lambda seen: reply(whole(wire, wire_reply(usage=None)))) as provider,
        served(tmp_path, provider.url) as server,
    ):
        assert post(server.url, PATHS[wire], body(wire), server.auth).status_code == 200
    billed, unknown = booked(server)
    assert billed == 0 and unknown > 50 * 4 / 1e6


@pytest.mark.parametrize("when", ["before the first byte", "after three events"])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_is_read_on_after_its_client_left(wire: WireName, ends: bool, when: str, tmp_path: Path) -> None:
    pieces = events(wire, wire_reply("word " * 40))
    pause = 0.4 if ends else 60.0

    def answer(seen: Seen) -> list[Step]:
        first = when == "before the first byte"
        return [pause, *stream(pieces)] if first else stream([*pieces[:3], pause, *pieces[3:]])

    with (
        stub(answer) as provider,
        served(tmp_path, provider.url, "serve.drain_seconds=1") as server,
        httpx2.Client(timeout=30, headers=server.auth) as client,
    ):
        asks = server.url + PATHS[wire], body(wire, stream=True)
        if when == "before the first byte":
            with pytest.raises(httpx2.ReadTimeout):
                client.post(asks[0], json=asks[1], timeout=0.2)
        else:
            with client.stream("POST", asks[0], json=asks[1]) as made:
                next(made.iter_raw())
    billed, unknown = booked(server)
    (row,) = read_traffic(server.folder)
    if ends:
        assert (billed, unknown) == (pytest.approx(USD), 0.0) and row["whole"]
    else:
        assert billed == 0 and unknown > 0 and row["client_left"] and row["usd"] is None


def test_a_cap_is_one_clear_line_in_the_client_s_format_and_nothing_is_sent(tmp_path: Path) -> None:
    with (
        stub(lambda seen: reply(whole("chat"))) as provider,
        served(tmp_path, provider.url, "teacher.max_usd=0.0001") as server,
    ):
        for wire in WIRES:
            made = post(server.url, PATHS[wire], body(wire), server.auth)
            assert made.status_code == 402 and made.headers["x-should-retry"] == "false"
            message = made.json()["error"]["message"]
            assert "teacher.max_usd=0.0001" in message and "limit the reply" not in message
        endless = {key: value for key, value in body("chat").items() if "max" not in key}
        message = post(server.url, PATHS["chat"], endless, server.auth).json()["error"]["message"]
        assert message.endswith(", or limit the reply (max_tokens): without a limit the longest one is reserved")
    assert not provider.seen and booked(server) == (0.0, 0.0)
    assert [row["usd"] for row in read_traffic(server.folder)] == [0.0] * (len(WIRES) + 1), "nothing was sent"


@pytest.mark.parametrize("cap", ["teacher.max_usd", "serve.max_usd_per_session"])
def test_a_cap_that_requests_in_flight_hold_is_waited_for(cap: str, tmp_path: Path) -> None:
    """The SDK retries until the first request has ended."""
    first_asked, second_refused = threading.Event(), threading.Event()

    def answer(seen: Seen) -> list[Step]:
        first_asked.set()
        second_refused.wait()
        return reply(whole("chat"))

    with stub(answer) as provider, served(tmp_path, provider.url, f"{cap}=0.0005") as server:
        ask = {"messages": [{"role": "user", "content": "Hi."}], "model": "llm", "max_tokens": 50}
        headers = server.auth | {"x-r2v-session": "s"}
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(post, server.url, PATHS["chat"], ask, headers)
            first_asked.wait()
            refused = post(server.url, PATHS["chat"], ask, headers)
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert cap in refused.json()["error"]["message"] and "x-should-retry" not in refused.headers
            second_refused.set()
            assert first.result().status_code == 200
        booked(server)
        assert post(server.url, PATHS["chat"], ask, headers).status_code == 200


def test_a_provider_that_cannot_be_reached_costs_nothing(tmp_path: Path) -> None:
    with served(tmp_path, "http://127.0.0.1:9") as server:
        made = post(server.url, PATHS["chat"], body("chat"), server.auth)
    assert made.status_code == 503 and "127.0.0.1:9" in made.json()["error"]["message"]
    assert booked(server) == (0.0, 0.0)


def test_usage_of_another_order_is_settled_below_what_was_reserved(tmp_path: Path) -> None:
    """The reservation is a bound: a token per byte, and the whole limit."""
    usage = TokenUsage(input=80, output=50)
    with (
        stub(lambda seen: reply(whole("chat", wire_reply(usage=usage)))) as provider,
        served(tmp_path, provider.url) as server,
    ):
        post(server.url, PATHS["chat"], body("chat"), server.auth)
    rows = [json.loads(line) for line in (server.folder / "journal.jsonl").read_text().splitlines()]
    forward, settled = rows[-2:]
    assert forward["row"] == "forward" and settled["row"] == "served" and settled["usd"] <= forward["usd"]


def test_no_response_is_held_when_its_reply_has_ended(tmp_path: Path) -> None:
    """Regression: a timer for a client that leaves held each for `serve.drain_seconds`."""
    with stub(lambda seen: reply(whole("chat"))) as provider, served(tmp_path, provider.url) as server:
        for _ in range(20):
            assert post(server.url, PATHS["chat"], body("chat"), server.auth).status_code == 200
        booked(server)
        gc.collect()
        assert sum(isinstance(one, aiohttp.ClientResponse) for one in gc.get_objects()) < 5
