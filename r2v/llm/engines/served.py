"""Policy behind a serving engine, as a `Remote` with thousands of requests in flight.

    served = served_chat(servers, adapter, encode=encode, end_ids=ends, replies=TokenReplies(tokenizer, "slm", price))
    slm = waves.model(served)

Prompts are encoded in a separate thread. A conversation stays with one server, whose prefix cache holds its earlier
turns. A dead server is restarted and its unanswered requests are sent again (`r2v.llm.engines.client`); draws are
keyed, so the answers are the same. A refused prompt or a shortened reply raises `Unanswered`, an unavailable engine
EnvironmentFault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from r2v.llm.engines.client import Adapter, EngineClient, ServedModel
from r2v.llm.engines.servers import EngineServer
from r2v.llm.local.decode import Draw
from r2v.llm.local.token_replies import TokenReplies, num_drawn
from r2v.llm.types import Reply, Request
from r2v.wire.message import Message

_SESSION_PARTS = 2
"""Leading parts of a request's key that name its conversation: seed and task."""


def served_chat(
    servers: Sequence[EngineServer],
    adapter: Adapter | None,
    *,
    encode: Callable[[Sequence[Message]], Sequence[int]],
    end_ids: frozenset[int],
    replies: TokenReplies,
) -> ServedModel[Request, Reply]:
    """Return the base model, with an adapter or without, on these servers."""
    client = EngineClient(servers, adapter)

    async def reply(request: Request) -> Reply:
        prompt = await client.encoded(encode, request.messages)
        index = client.server_index(*request.key[:_SESSION_PARTS])
        draws = [Draw.of(request, k) for k in range(num_drawn(request))]
        drawn = list(await asyncio.gather(*(client.complete(index, prompt, draw, end_ids) for draw in draws)))
        return replies.reply(len(prompt), drawn * (request.num_samples // len(drawn)))

    return ServedModel(client, reply)
