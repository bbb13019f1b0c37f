"""Answer cache: replies and scores by a digest of their request, bounded in number.

Methods that share a history send the same requests one after the other and pay for them once. Keys are digests rather
than conversations, because each page (up to 30 kB) recurs in every later request and would fill the memory in a long
evaluation. The oldest answers are evicted first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from typing import Any

from r2v.llm.types import Request, ScoreRequest
from r2v.wire.message import Message

ANSWERS = 1 << 14
"""Default size, about 30 MB: twice the requests of a block's episodes."""


class AnswerCache(dict[Hashable, Any]):
    """Answers, or futures of pending answers, by the digests of their requests; engines may share one."""

    def __init__(self, max_size: int = ANSWERS) -> None:
        super().__init__()
        self.max_size = max_size

    def __setitem__(self, key: Hashable, value: Any) -> None:
        """Store an answer and evict the oldest. Callers that await an evicted future still hold it."""
        super().__setitem__(key, value)
        while len(self) > self.max_size:
            del self[next(iter(self))]


def digest_of(messages: Iterable[Message], *rest: Any) -> bytes:
    """Return a 16-byte digest of a conversation and some plain values."""
    content = hashlib.blake2b(repr(rest).encode(errors="surrogatepass"), digest_size=16)
    for message in messages:
        plain = isinstance(message.content, str)
        text = (message.text if plain else repr(message.content)).encode(errors="surrogatepass")
        content.update(f"{message.role} {len(text)}\n".encode())
        content.update(text)
    return content.digest()


def chat_cache_key(request: Request) -> Hashable:
    """Return the key of a chat request; its draw's key counts only if the reply is sampled."""
    key = request.key if request.temperature > 0 else ()
    sampling = (request.num_samples, request.temperature, request.top_p, request.max_tokens, request.logprobs)
    return digest_of(request.messages, key, *sampling)


def score_cache_key(request: ScoreRequest) -> Hashable:
    """Return the key of a verifier's request."""
    return digest_of(request.messages, request.action)
