"""Several processes of one project send the same request: one pays, and the others get its answer, whichever process
dies."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.errors import Interrupted
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.wire.message import Message
from tests.llm.talk import HeldLifecycle, converse, environment, killed, play, remote

BOTH = ("openai", "anthropic")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that starts an emulator and points both SDKs to it."""

    @contextmanager
    def made(*faults: Fault, lifecycle: Lifecycle | None = None) -> Iterator[Emulator]:
        with Emulator(faults=faults, lifecycle=lifecycle or Lifecycle(polls=2)) as emulator:
            for name, value in environment(emulator).items():
                monkeypatch.setenv(name, value)
            yield emulator

    return made


def draws(emulator: Emulator) -> Counter[tuple[str, int, str]]:
    """Return how often each (draw, turn, body) was billed, over all journals."""
    return Counter((bill.turn[1], bill.turn[2], bill.body_sha256) for bill in emulator.ledger().bills if bill.turn)


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind in a journal."""
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["row"] == kind]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def run(backend: Any, count: int, turns: int = 1) -> list[list[str]]:
    """Play conversations to their end, beside others on the same event loop."""
    waves = Waves(max_conversations=count)
    model = waves.model(backend)
    return await waves.play(partial(converse, model, number, turns) for number in range(count))


@pytest.mark.parametrize("provider", BOTH)
@pytest.mark.parametrize("mode", ["batch", "concurrent"])
def test_what_another_payer_has_paid_is_not_paid_again(mode: str, provider: str, serve: Any, tmp_path: Path) -> None:
    with serve() as emulator:
        said = play(provider, tmp_path / "first", count=4, turns=2, project=tmp_path, mode=mode)
        assert len(emulator.ledger().bills) == 8
        again = play(provider, tmp_path / "second", count=5, turns=2, project=tmp_path, mode=mode)
        assert again[:4] == said and len(emulator.ledger().bills) == 10, "the fifth conversation is new"
        play(provider, tmp_path / "foreign", count=1, turns=1, project=tmp_path, mode=mode, scope="another endpoint")
        assert len(emulator.ledger().bills) == 11, "an answer of another endpoint is none"
        assert play(provider, tmp_path / "second", count=5, turns=2, project=tmp_path, mode=mode) == again
        assert len(emulator.ledger().bills) == 11


def test_a_draw_is_reused_for_its_own_key_and_for_no_other(serve: Any, tmp_path: Path) -> None:
    message = (Message(role="user", content="roll a die"),)

    def ask(folder: str, *keys: int) -> list[str]:
        waves = Waves(max_conversations=8)
        model = waves.model(remote("openai", tmp_path / folder, project=tmp_path))

        async def one(key: int) -> str:
            request = Request(messages=message, key=("die", key), temperature=1.0, max_tokens=9)
            return (await model.reply(request)).text

        return waves.run(partial(one, key) for key in keys)

    with serve() as emulator:
        ask("a", 1, 2)
        ask("b", 1, 2, 3)
        assert len(emulator.ledger().bills) == 3 and set(draws(emulator).values()) == {1}


@pytest.mark.parametrize("provider", BOTH)
def test_two_that_ask_the_same_at_the_same_time_pay_once(provider: str, serve: Any, tmp_path: Path) -> None:
    held = HeldLifecycle()
    with serve(lifecycle=held) as emulator:

        async def both() -> list[list[list[str]]]:
            first = asyncio.create_task(run(remote(provider, tmp_path / "a", project=tmp_path), 3))
            await until(lambda: len(emulator.ledger().bills) == 3)
            second = asyncio.create_task(run(remote(provider, tmp_path / "b", project=tmp_path), 4))
            await until(lambda: len(emulator.ledger().bills) == 4)
            held.release()
            return [await first, await second]

        first, second = asyncio.run(both())
        assert second[:3] == first and set(draws(emulator).values()) == {1}
        assert len(rows(tmp_path / "b", "answer")) == 1


@pytest.mark.parametrize("provider", BOTH)
@pytest.mark.parametrize("at", [*range(1, 9)])
def test_killed_at_any_row_and_asked_by_another_payer_it_is_paid_once(
    at: int, provider: str, serve: Any, tmp_path: Path
) -> None:
    with serve(lifecycle=Lifecycle(polls=1)) as emulator:
        spec = {
            "provider": provider,
            "folder": str(tmp_path / "dead"),
            "urls": environment(emulator),
            "count": 3,
            "turns": 1,
            "at": at,
            "how": "after",
            "plan": {"project": tmp_path},
        }
        was_killed = killed(spec)
        said = play(provider, tmp_path / "heir", count=3, turns=1, project=tmp_path)
        assert [len(turns) for turns in said] == [1] * 3 and set(draws(emulator).values()) == {1}
        if was_killed and rows(tmp_path / "dead", "created"):
            assert not rows(tmp_path / "heir", "claim"), "the dead journal's batch was brought home"
            assert len(rows(tmp_path / "dead", "answer")) == 3


def test_while_its_batch_is_brought_home_the_run_itself_goes_on_in_a_journal_beside(serve: Any, tmp_path: Path) -> None:
    held = HeldLifecycle()
    with serve(lifecycle=held) as emulator:

        async def leaving() -> None:
            waves = Waves(max_conversations=4)
            model = waves.model(remote("openai", tmp_path / "a", project=tmp_path))

            async def stop() -> list[str]:
                await until(lambda: rows(tmp_path / "a", "created"))
                raise Interrupted("time is up")

            with pytest.raises(Interrupted):
                await waves.play([*(partial(converse, model, n, 1) for n in range(3)), stop])

        async def both() -> list[list[list[str]]]:
            await leaving()
            heir = asyncio.create_task(run(remote("openai", tmp_path / "b", project=tmp_path), 3))
            await until(lambda: (tmp_path / "a/journal.lease").exists())
            itself = asyncio.create_task(run(remote("openai", tmp_path / "a", project=tmp_path), 3))
            await until(lambda: (tmp_path / "a/1/journal.jsonl").exists())
            held.release()
            return [await heir, await itself]

        heir, itself = asyncio.run(both())
        assert heir == itself and len(emulator.ledger().bills) == 3


def test_a_damaged_journal_is_named_and_none_of_its_answers_is_used(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as emulator:
        play("openai", tmp_path / "a", count=2, turns=1, project=tmp_path)
        journal = tmp_path / "a/journal.jsonl"
        content = journal.read_bytes()
        journal.write_bytes(content.replace(b"conversation 1", b"conversation 7"))
        with caplog.at_level(logging.WARNING):
            play("openai", tmp_path / "b", count=2, turns=1, project=tmp_path)
        assert len(emulator.ledger().bills) == 4
        assert [m for m in caplog.messages if "journal damaged" in m and "a/journal.jsonl" in m]


def test_a_request_that_is_given_up_may_be_asked_by_others(serve: Any, tmp_path: Path) -> None:
    with serve(Fault("500", at=(1, 2), on="sync")) as emulator:
        plan = {"project": tmp_path, "mode": "concurrent", "attempts": 2}

        async def both() -> list[list[str]]:
            first = remote("openai", tmp_path / "a", **plan)
            waves = Waves(max_conversations=2)
            model, given_up = waves.model(first), asyncio.Event()

            async def asking() -> list[str]:
                with pytest.raises(Exception, match="no answer after 2 attempts"):
                    await converse(model, 0, 1)
                await until(lambda: rows(tmp_path / "a", "release"))
                given_up.set()
                await second_done.wait()  # the first process lives on
                return []

            second_done = asyncio.Event()
            playing = asyncio.create_task(waves.play([asking]))
            await given_up.wait()
            said = await run(remote("openai", tmp_path / "b", **plan), 1)
            second_done.set()
            await playing
            return said

        (said,) = asyncio.run(both())
        assert len(said) == 1 and len(rows(tmp_path / "b", "answer")) == 1 and emulator.ledger().bills
