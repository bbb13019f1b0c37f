"""The emulated prompt cache: which of a prompt's tokens were read from it, and which are written to it.

Anthropic keeps what stands before a block that says `cache_control`, for five minutes or an hour from its last use, and
finds again what was kept at one of the twenty blocks before such a mark. OpenAI keeps every prompt for half an hour,
unasked, and bills no writing. Neither keeps fewer tokens than `CACHEABLE`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from r2v.emulator.answers import EmulatedRequest

CACHEABLE = 1024
"""Tokens a prompt prefix must have to be cached, at both providers."""
_LIFETIMES = {"5m": 300.0, "1h": 3600.0}
_UNASKED = 1800.0
"""Seconds."""
_LOOKS_BACK = 20
"""Blocks."""


@dataclass(frozen=True, kw_only=True)
class CachedTokens:
    """Of one prompt's tokens. The rest is fresh."""

    read: int = 0
    written: int = 0
    """In all."""
    written_1h: int = 0
    """Of these, for an hour."""


@dataclass(frozen=True)
class _Prefix:
    digest: bytes
    tokens: int
    lifetime: str | None
    """How long it is to be kept; None: it is not marked."""


class PromptCaches:
    """The caches of all models. count: tokens of a text. Not safe for threads: its owner has a lock."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._kept: dict[bytes, tuple[float, float]] = {}
        """Prefix -> (when it ends, how long it lives from its last use)."""

    def split(self, request: EmulatedRequest, now: float) -> CachedTokens:
        """Which tokens of this prompt are read and written now."""
        prefixes = list(self._prefixes(request))
        if request.provider == "openai":
            found = self._found(prefixes, now)
            for prefix in prefixes:
                self._kept[prefix.digest] = now + _UNASKED, _UNASKED
            return CachedTokens(read=found)
        marked = [at for at, prefix in enumerate(prefixes) if prefix.lifetime]
        near = [prefix for at, prefix in enumerate(prefixes) if any(at <= m < at + _LOOKS_BACK for m in marked)]
        read = found = self._found(near, now)
        written = written_1h = 0
        for at in marked:
            prefix = prefixes[at]
            if prefix.tokens < CACHEABLE:
                continue
            new = max(0, prefix.tokens - found)
            found = max(found, prefix.tokens)
            written += new
            written_1h += new if prefix.lifetime == "1h" else 0
            lifetime = _LIFETIMES[prefix.lifetime or "5m"]
            self._kept[prefix.digest] = now + lifetime, lifetime
        return CachedTokens(read=read, written=written, written_1h=written_1h)

    def _found(self, prefixes: list[_Prefix], now: float) -> int:
        """Tokens of the longest of these that is kept; it lives on from now."""
        for prefix in reversed(prefixes):
            ends, lifetime = self._kept.get(prefix.digest, (0.0, 0.0))
            if prefix.tokens >= CACHEABLE and ends > now:
                self._kept[prefix.digest] = now + lifetime, lifetime
                return prefix.tokens
        return 0

    def _prefixes(self, request: EmulatedRequest) -> Iterator[_Prefix]:
        state, tokens = hashlib.blake2b(f"{request.provider} {request.model}".encode(), digest_size=16), 0
        for text, lifetime in _blocks(request.body):
            state.update(f"{len(text)} {text}".encode())
            tokens += self._count(text)
            yield _Prefix(state.digest(), tokens, lifetime)


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The texts of a body in their order, each with how long the prompt up to its end is to be kept."""
    messages: Any = body.get("messages", body.get("input")) or []
    if isinstance(messages, str):
        messages = [{"content": messages}]
    contents: list[Any] = [body.get("system"), body.get("instructions")]
    for content in (*contents, *(message.get("content") for message in messages)):
        blocks: list[dict[str, Any]] = [{"text": content}] if isinstance(content, str) else content or []
        for block in blocks:
            mark = block.get("cache_control")
            yield str(block.get("text", "")), (mark.get("ttl") or "5m") if mark else None
