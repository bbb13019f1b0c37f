"""Served: the policy behind a serving engine, as a `Remote`: thousands of requests out at once.

    served = Served(servers, adapter, encode=encode, end_ids=ends, replies=TokenReplies(tokenizer, "slm", price))
    slm = waves.model(served)

Prompts are encoded in a thread beside the event loop. A conversation stays with one server, whose cache holds its
prefix. A server that dies is started again and what it owed is asked again (`r2v.llm.engines.client`): draws are keyed,
so the answers are those it would have given, and no conversation notices. A prompt that the server refuses, and a reply
that it cut short, is a refused request (`Unanswered`); an engine that cannot be had is an EnvironmentFault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from r2v.llm.engines.client import Adapter, EngineClient
from r2v.llm.engines.servers import EngineServer
from r2v.llm.local.decode import Draw, Drawn
from r2v.llm.local.wording import TokenReplies, num_drawn
from r2v.llm.types import Reply, Request
from r2v.wire.message import Message

_SESSION_PARTS = 2
"""Parts of a key that are the conversation's: seed and task."""


class Served:
    """A `Remote[Request, Reply]` (see `r2v.llm.types`) of the base model, or of it with adapters."""

    max_batch = 100_000
    max_age = 0.0

    def __init__(
        self,
        servers: Sequence[EngineServer],
        adapter: Adapter | None,
        *,
        encode: Callable[[Sequence[Message]], Sequence[int]],
        end_ids: frozenset[int],
        replies: TokenReplies,
    ) -> None:
        self.client = EngineClient(servers, adapter)
        self._encode, self._end_ids, self._replies = encode, end_ids, replies

    @property
    def servers(self) -> Sequence[EngineServer]:
        """Who answers."""
        return self.client.servers

    async def __aenter__(self) -> Served:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    def send(self, requests: Sequence[Request]) -> Sequence[asyncio.Future[Reply]]:
        """One future reply per request, in order."""
        return self.client.start(self._reply(request) for request in requests)

    async def _reply(self, request: Request) -> Reply:
        prompt = await self.client.encoded(self._encode, request.messages)
        drawn = list(await asyncio.gather(*(self._complete(prompt, request, k) for k in range(num_drawn(request)))))
        return self._replies.reply(len(prompt), drawn * (request.num_samples // len(drawn)))

    async def _complete(self, prompt: Sequence[int], request: Request, k: int) -> Drawn:
        place = self.client.place_of(*request.key[:_SESSION_PARTS])
        return await self.client.complete(place, prompt, Draw.of(request, k), self._end_ids)
