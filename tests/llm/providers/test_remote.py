"""Remote backends behind the wave engine: many waves out at once, each answer handed on when it lands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType

import pytest

from r2v.llm.waves import Waves


class Post:
    """A remote that answers a wave when it is told to, or at once."""

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
    ask = waves.port(post)

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
    ask = waves.port(post)

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
    ask = waves.port(post)
    with pytest.raises(ValueError, match="no such question"):
        waves.run([partial(ask, "a"), partial(ask, "b")])
    assert post.events == ["entered", "left"]


def test_a_remote_is_left_when_a_conversation_fails() -> None:
    waves, post = Waves(max_conversations=4), Post(max_age=0.01)
    ask = waves.port(post)

    async def fails() -> None:
        await until(lambda: post.waves)
        raise RuntimeError("mine")

    try:
        waves.run([partial(ask, "a"), fails])
    except RuntimeError as error:
        assert str(error) == "mine"
    assert post.events == ["entered", "left"]
