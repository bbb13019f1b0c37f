"""Requests to a model and its replies.

A conversation awaits `model.reply(request)`; where the answer is made (a local network, a scripted expert,
a provider's batch) is the business of the backend behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, TypeVar, runtime_checkable

from r2v.randomness import Key
from r2v.wire.message import Message, ToolSpec

Q = TypeVar("Q", contravariant=True)
A = TypeVar("A", covariant=True)
R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request to a model.

    `key` names every random draw of the reply, e.g. (seed, task_id, step, actor); sample k of `num_samples`
    draws under `(*key, k)`. Temperature 0 is greedy and draws nothing.
    """

    messages: tuple[Message, ...]
    key: Key
    tools: tuple[ToolSpec, ...] = ()
    num_samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 64
    own_rules: bool = False
    """The conversation is another agent's and says itself how to act: its messages and tools are sent as they are, and
    a reply may call any number of tools or none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """One request to a verifier: how good is this action in this context?"""

    messages: tuple[Message, ...]
    action: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreReply:
    """A verifier's answer: how good the action is, in [0, 1], and how many tokens it read for that."""

    score: float
    tokens_in: int = 0


ModelOutcome = Literal["refused", "truncated", "overflowed", "silent"]
"""Why a model gave no action: it or a filter refused; its tokens were spent on thoughts; the prompt was longer than its
context; its answers were empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One completion. `logprobs`, `entropies` (nats) and `margins` (the likeliest token's probability less the
    second's), of the untempered distribution, have one entry per token, rounded to 6 decimals; they are empty where a
    backend cannot give them."""

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    finish_reason: Literal["stop", "length", "error"] = "stop"
    more: tuple[str, ...] = ()
    """Actions that were called together with `text`, to be executed after it."""
    reply_id: str | None = None
    """The provider's name of the reply that it is of."""
    message: Message | None = None
    """The completion as its model gave it, with native calls and thoughts; None where it is text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one reply (the prompt once, however many samples) and what they cost in USD."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A model's answer: `num_samples` completions of one request, in sample order."""

    samples: tuple[Sample, ...]
    usage: Usage
    model: str

    @property
    def text(self) -> str:
        """The first sample's text."""
        return self.samples[0].text


class ChatModel(Protocol):
    """Something that can be awaited for a reply."""

    async def reply(self, request: Request) -> Reply:
        """Answer one request. Raises EnvironmentFault when no answer can be had."""
        ...


class Backend(Protocol[Q, A]):
    """Answers many requests at once, in order; the wave engine decides when and how many.

    Chat backends are `Backend[Request, Reply]`; a verifier that scores actions is a
    `Backend[ScoreRequest, ScoreReply]`. `answer` is called in a worker thread, never twice at the same time.
    """

    max_batch: int

    def answer(self, requests: Sequence[Q]) -> Sequence[A]:
        """One answer per request, in order."""
        ...


@runtime_checkable
class Preparing(Protocol[S]):
    """A backend that has its requests made ready, one at a time in a thread beside the one that it answers in."""

    def prepare(self, request: S) -> S:
        """The request with what it takes to answer it, such as its tokens."""
        ...


@runtime_checkable
class Remote(Protocol[Q, R]):
    """Answers requests over hours, many waves of them in flight at the same time. Entered for the length of a run.

    `max_age` is how long (seconds) a request may wait for others to share its wave; `send` takes a wave
    without waiting for it and answers each request by itself.
    """

    max_batch: int
    max_age: float

    async def __aenter__(self) -> object:
        """Resume what an earlier process left in flight."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sending; what is in flight stays so."""
        ...

    def send(self, requests: Sequence[Q]) -> Sequence[asyncio.Future[R]]:
        """One future answer per request, in order."""
        ...
