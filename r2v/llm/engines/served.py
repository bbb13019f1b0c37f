"""Policy behind a serving engine, as a `Remote` with thousands of requests in flight.

    served = Served(servers, adapter, encode=encode, end_ids=ends, replies=TokenReplies(tokenizer, "slm", price))
    slm = waves.model(served)

Prompts are encoded in a separate thread. A conversation stays with one server, whose prefix cache holds its earlier
turns. A dead server is restarted and its unanswered requests are sent again (`r2v.llm.engines.client`); draws are
keyed, so the answers are the same. A refused prompt or a shortened reply raises `Unanswered`, an unavailable engine
EnvironmentFault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from r2v.llm.engines.client import Adapter, EngineClient
from r2v.llm.engines.servers import EngineServer
from r2v.llm.local.decode import Draw, Drawn
from r2v.llm.local.token_replies import TokenReplies, num_drawn
from r2v.llm.types import Reply, Request
from r2v.wire.message import Message

_SESSION_PARTS = 2
"""Leading parts of a request's key that name its conversation: seed and task."""


class Served:
    """A `Remote[Request, Reply]` (see `r2v.llm.types`) of the base model, with an adapter or without."""

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
        """Engine servers that answer the requests."""
        return self.client.servers

    async def __aenter__(self) -> Served:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    def send(self, requests: Sequence[Request]) -> Sequence[asyncio.Future[Reply]]:
        """Return one future reply per request, in order."""
        return self.client.start(self._reply(request) for request in requests)

    async def _reply(self, request: Request) -> Reply:
        prompt = await self.client.encoded(self._encode, request.messages)
        drawn = list(await asyncio.gather(*(self._complete(prompt, request, k) for k in range(num_drawn(request)))))
        return self._replies.reply(len(prompt), drawn * (request.num_samples // len(drawn)))

    async def _complete(self, prompt: Sequence[int], request: Request, k: int) -> Drawn:
        index = self.client.server_index(*request.key[:_SESSION_PARTS])
        return await self.client.complete(index, prompt, Draw.of(request, k), self._end_ids)
