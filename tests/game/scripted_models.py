"""Scripted players behind the ordinary interfaces: one that answers wave by wave, one whose answers arrive late."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from r2v.game.play.players import ModelAgent
from r2v.game.service.provider_setup import DispatchSettings
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import Reply, Request, Sample, Usage

Speak = Callable[[Request], str]

SECRET = re.compile(r'your secret is "(.*)"')


def secret_of(request: Request) -> str:
    """Return the secret in a player's prompt."""
    match = SECRET.search(request.messages[0].content)
    assert match is not None
    return match[1]


def conversation(request: Request) -> str:
    return str(request.key[2])


def number(request: Request) -> int:
    """Return the index of the requested message of the conversation, from 0."""
    return int(request.key[3])


def reply(text: str, model: str = "scripted") -> Reply:
    return Reply(samples=(Sample(text=text),), model=model, usage=Usage(tokens_in=7, tokens_out=3, cost_usd=0.5))


class Scripted:
    """A backend that keeps every wave it was given."""

    def __init__(self, speak: Speak = lambda request: "hello", max_batch: int = 1000) -> None:
        self.max_batch, self._speak = max_batch, speak
        self.waves: list[list[Request]] = []

    def answer(self, questions: Sequence[Request]) -> list[Reply]:
        self.waves.append(list(questions))
        return [reply(self._speak(question)) for question in questions]


class Distant:
    """A remote whose answers arrive after `delay(request)` turns of the event loop; `fails` may refuse one."""

    max_batch, max_age = 1000, 0.0

    def __init__(
        self,
        speak: Speak = lambda request: "hello",
        delay: Callable[[Request], int] = lambda request: 1,
        fails: Callable[[Request], str | None] = lambda request: None,
    ) -> None:
        self._speak, self._delay, self._fails = speak, delay, fails
        self.waves: list[list[Request]] = []
        self.most_out, self._out = 0, 0
        self.landed: list[tuple[str, str | int]] = []
        self._tasks: list[asyncio.Task[Reply]] = []

    async def __aenter__(self) -> Distant:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()

    def send(self, questions: Sequence[Request]) -> list[asyncio.Future[Reply]]:
        self.waves.append(list(questions))
        self._out += 1
        self.most_out = max(self.most_out, self._out)
        left = [len(questions)]
        tasks = [asyncio.ensure_future(self._answer(question, left)) for question in questions]
        self._tasks += tasks
        return list(tasks)

    async def _answer(self, question: Request, left: list[int]) -> Reply:
        for _ in range(self._delay(question)):
            await asyncio.sleep(0)
        self.landed.append((conversation(question), question.key[3]))
        left[0] -= 1
        self._out -= left[0] == 0
        if (reason := self._fails(question)) is not None:
            raise Unanswered(reason, final=True)
        return reply(self._speak(question))


def opening(*backends: object) -> Callable[[ModelAgent, DispatchSettings], object]:
    """Return a function that gives out these backends in order, one per model."""
    waiting = list(backends)
    return lambda agent, dispatch: waiting.pop(0)
