"""Remote backends behind the wave engine: many waves in flight at once, each answer passed on when it arrives."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from r2v.llm.providers.bodies import chat_body
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import CallResult, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict
from r2v.llm.providers.registry.shape import RequestShape
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.providers.verdicts import verdict_of_error
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.wire.errors import read_error
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message, ToolSpec


class Post:
    """A remote that answers a wave when the test says so, or at once."""

    def __init__(self, max_batch: int = 64, max_age: float = 60.0) -> None:
        self.max_batch, self.max_age = max_batch, max_age
        self.waves: list[list[str]] = []
        self.futures: list[list[asyncio.Future[str]]] = []
        self.events: list[str] = []

    async def __aenter__(self) -> Post:
        self.events.append("entered")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.events.append("left")

    def send(self, questions: Sequence[str]) -> list[asyncio.Future[str]]:
        self.waves.append(list(questions))
        self.futures.append([asyncio.get_running_loop().create_future() for _ in questions])
        return self.futures[-1]

    def land(self, wave: int) -> None:
        for question, future in zip(self.waves[wave], self.futures[wave], strict=True):
            future.set_result(f"re: {question}")


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0)


def test_a_conversation_goes_on_while_another_wave_is_out() -> None:
    waves, post = Waves(max_conversations=8), Post(max_batch=2)
    ask = waves.batched(post)

    async def talk(name: str) -> list[str]:
        return [await ask(f"{name}{turn}") for turn in range(2)]

    async def postman() -> list[str]:
        await until(lambda: len(post.waves) == 2)
        post.land(1)
        await until(lambda: len(post.waves) == 3)
        assert post.waves[2] == ["c1", "d1"], "the second turn left while the first wave is still out"
        post.land(2)
        post.land(0)
        await until(lambda: len(post.waves) == 4)
        post.land(3)
        return []

    said = waves.run([*(partial(talk, name) for name in "abcd"), postman])
    assert said[0] == ["re: a0", "re: a1"] and said[3] == ["re: d0", "re: d1"]
    assert post.events == ["entered", "left"]


def test_a_question_without_an_answer_is_its_own_conversations_matter() -> None:
    waves, post = Waves(max_conversations=4), Post(max_age=0.01)
    ask = waves.batched(post)

    async def talk(name: str) -> str:
        try:
            return await ask(name)
        except ValueError:
            return "none"

    async def postman() -> str:
        await until(lambda: post.waves)
        post.futures[0][0].set_exception(ValueError("refused"))
        post.futures[0][1].set_result("re: b")
        return ""

    assert waves.run([partial(talk, "a"), partial(talk, "b"), postman]) == ["none", "re: b", ""]


def test_what_a_remote_raises_while_sending_reaches_whoever_asked() -> None:
    class Broken(Post):
        def send(self, questions: Sequence[str]) -> list[asyncio.Future[str]]:
            raise ValueError("no such question")

    waves, post = Waves(max_conversations=4), Broken()
    ask = waves.batched(post)
    with pytest.raises(ValueError, match="no such question"):
        waves.run([partial(ask, "a"), partial(ask, "b")])
    assert post.events == ["entered", "left"]


def test_a_remote_is_left_when_a_conversation_fails() -> None:
    waves, post = Waves(max_conversations=4), Post(max_age=0.01)
    ask = waves.batched(post)

    async def fails() -> None:
        await until(lambda: post.waves)
        raise RuntimeError("mine")

    try:
        waves.run([partial(ask, "a"), fails])
    except RuntimeError as error:
        assert str(error) == "mine"
    assert post.events == ["entered", "left"]


class Strict:
    """A provider of chat bodies whose server accepts alternating user and assistant turns only, and then answers in
    prose."""

    name = "strict"

    def __init__(self, say: str) -> None:
        self.in_turn, self._say = False, say
        self.refused = self.taken = 0

    def request_body(self, request: Request) -> Mapping[str, Any]:
        return chat_body(replace(RATE, shape=RequestShape(in_turn=self.in_turn)), request)

    async def call(self, request: ProviderRequest) -> CallResult:
        roles = [message["role"] for message in request.body["messages"] if message["role"] != "system"]
        if any(one == other for one, other in itertools.pairwise(roles)):
            self.refused += 1
            verdict = verdict_of_error(read_error(400, b'{"message": "roles must alternate", "code": 400}'))
            raise ProviderFault(verdict.reason, kind=verdict.kind, status=400, verdict=verdict)
        self.taken += 1
        counts = TokenCounts(fresh=2048, output=3)
        return CallResult(verdict=RequestVerdict(kind="ok", text=self._say, tokens=counts))

    async def close(self) -> None:
        pass


RATE = Rate(model="m", input=1.0, output=2.0, batch=0.5, cached=0.1, write_5m=1.0, write_1h=1.0)
TOOLS = (ToolSpec(name="look"),)


def ask_all(provider: Strict, folder: Path, count: int) -> list[str]:
    """Ask as many questions as there are conversations, each of a goal, a page and tools."""
    waves = Waves(max_conversations=count)
    policy = DispatchPolicy(mode="concurrent", max_concurrent=4)
    model = waves.model(ProviderRemote(provider, RATE, folder, policy, scope={"test": "strict"}))

    async def ask(number: int) -> str:
        pages = "page " * (100 + 900 * number)
        messages = (Message(role="user", content=f"goal {number}"), Message(role="tool", content=pages))
        return (await model.reply(Request(messages=messages, key=("k", number), tools=TOOLS))).text

    return waves.run(partial(ask, number) for number in range(count))


def test_a_server_that_wants_both_sides_in_turn_is_asked_so_from_its_first_refusal_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Strict('{"tool": "look"}')
    said = ask_all(provider, tmp_path, 12)
    assert said == ['{"tool": "look"}'] * 12 and provider.taken == 12 and 1 <= provider.refused <= 12
    assert "consecutive messages refused; joining them" in caplog.text
    again = Strict("never asked")
    assert ask_all(again, tmp_path, 12) == said and again.taken == 0, "what was answered is found in either form"


def test_prose_and_prompts_that_are_cut_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ask_all(Strict("I would look around."), tmp_path, 24)
    told = [record.getMessage() for record in caplog.records]
    assert sum("replies hold no tool call: provider=" in line for line in told) == 1
    assert sum("remedy=shorten them by teacher.context=2048" in line for line in told) == 1
