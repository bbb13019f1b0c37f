"""Requests to a model, its replies, and the protocols of models and backends.

A conversation awaits `model.reply(request)`; the backend behind it is a local network, a scripted expert, or a
provider's batch.
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
    logprobs: bool = True
    """False if no one reads the tokens' log-probabilities and entropies: a serving engine then leaves them out."""
    own_rules: bool = False
    """True for another agent's conversation with its own instructions: messages and tools are sent unchanged, and a
    reply may call any number of tools or none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """One request to a verifier: to score an action in a context."""

    messages: tuple[Message, ...]
    action: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreReply:
    """A verifier's answer: the score of the action in [0, 1] and the tokens it read."""

    score: float
    tokens_in: int = 0


ModelOutcome = Literal["refused", "truncated", "overflowed", "silent"]
"""Reason why a model gave no action: the model or a filter refused; `max_tokens` went into reasoning; the prompt
exceeded the context; the answers were empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One completion. `logprobs` and `entropies` (nats) and `margins` (the likeliest token's probability minus the
    second's) of the untempered distribution have one entry per token, rounded to 6 decimals; they are empty if the
    backend does not provide them."""

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    finish_reason: Literal["stop", "length", "error"] = "stop"
    more: tuple[str, ...] = ()
    """Further actions of the same completion, to be executed after `text`."""
    reply_id: str | None = None
    """The provider's id of the reply."""
    message: Message | None = None
    """The completion as the model returned it, with native tool calls and reasoning; None if it is plain text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one reply (the prompt counted once for all samples) and their cost in USD."""

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
    """A chat model as conversations use it."""

    async def reply(self, request: Request) -> Reply:
        """Answer one request. Raises EnvironmentFault if no answer is available."""
        ...


class Backend(Protocol[Q, A]):
    """A model that answers many requests at once, in order; the wave engine decides when and how many.

    Chat backends are `Backend[Request, Reply]`; a verifier that scores actions is a
    `Backend[ScoreRequest, ScoreReply]`. `answer` is called in a worker thread, never twice at the same time.
    """

    max_batch: int

    def answer(self, requests: Sequence[Q]) -> Sequence[A]:
        """Return one answer per request, in order."""
        ...


@runtime_checkable
class Preparing(Protocol[S]):
    """A backend whose requests are prepared one at a time in a separate thread, while it answers others."""

    def prepare(self, request: S) -> S:
        """Return the request with the input the backend needs, such as its token ids."""
        ...


@runtime_checkable
class Remote(Protocol[Q, R]):
    """A backend with many waves in flight, which may take hours. Entered for the length of a run.

    `max_age` is the longest time (seconds) a request waits for others to share its wave; `send` accepts a wave without
    waiting for it and answers each request separately.
    """

    max_batch: int
    max_age: float

    async def __aenter__(self) -> object:
        """Resume the requests that an earlier process left in flight."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sending; requests in flight remain so."""
        ...

    def send(self, requests: Sequence[Q]) -> Sequence[asyncio.Future[R]]:
        """Return one future answer per request, in order."""
        ...
