"""Memo: answers by what determines them, and no more of them than are useful.

Methods that share a history ask the same questions one after the other; the memo lets them pay once. What it keeps is
a digest of the question and the answer, never the conversation: a page of 30 kB is in every later question, and
keeping them all would be the leak that ends a long evaluation. What was kept longest goes first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from typing import Any

from r2v.llm.types import Request, ScoreRequest
from r2v.wire.message import Message

ANSWERS = 1 << 14
"""Answers that a memo keeps, some 30 MB: twice what a block's episodes ask."""


class Memo(dict[Hashable, Any]):
    """Answers, or futures of answers that are under way, by the digests of their questions; engines may share one."""

    def __init__(self, most: int = ANSWERS) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Hashable, value: Any) -> None:
        """Keep an answer. Whoever waits for a future that makes room for it has the future still."""
        super().__setitem__(key, value)
        while len(self) > self.most:
            del self[next(iter(self))]


def digest_of(messages: Iterable[Message], *rest: Any) -> bytes:
    """16 bytes that stand for a conversation and some plain values."""
    content = hashlib.blake2b(repr(rest).encode(errors="surrogatepass"), digest_size=16)
    for message in messages:
        plain = isinstance(message.content, str)
        text = (message.text if plain else repr(message.content)).encode(errors="surrogatepass")
        content.update(f"{message.role} {len(text)}\n".encode())
        content.update(text)
    return content.digest()


def chat_memo_key(request: Request) -> Hashable:
    """What determines a reply: greedy ones depend on the context alone, sampled ones on the key too."""
    key = request.key if request.temperature > 0 else ()
    sampling = (request.num_samples, request.temperature, request.top_p, request.max_tokens)
    return digest_of(request.messages, key, *sampling)


def score_memo_key(request: ScoreRequest) -> Hashable:
    """What determines a verifier's score."""
    return digest_of(request.messages, request.action)
