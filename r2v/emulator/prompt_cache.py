"""Emulated prompt cache, which splits a prompt's tokens into read, written and fresh ones.

Anthropic caches the prefix up to a block with `cache_control`, for five minutes or an hour from its last use, and looks
for cached prefixes at the twenty blocks up to such a mark. OpenAI caches every prompt for half an hour and bills no
writing. Neither caches fewer tokens than `CACHEABLE`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from r2v.emulator.answers import EmulatedRequest

CACHEABLE = 1024
"""Minimum tokens of a cached prefix, at both providers."""
_LIFETIMES = {"5m": 300.0, "1h": 3600.0}
_AUTOMATIC = 1800.0
"""Lifetime of OpenAI's cached prompts in seconds."""
_LOOKS_BACK = 20
"""Blocks before a mark that Anthropic searches."""


@dataclass(frozen=True, kw_only=True)
class CachedTokens:
    """Cached tokens of one prompt. The rest is fresh."""

    read: int = 0
    written: int = 0
    """Tokens written, including `written_1h`."""
    written_1h: int = 0
    """Of these, tokens written for an hour."""


@dataclass(frozen=True)
class _Prefix:
    digest: bytes
    tokens: int
    lifetime: str | None
    """Key of _LIFETIMES; None: no mark."""


class PromptCaches:
    """Prompt caches of all models. count: tokens of a text. Not thread-safe; the owner has a lock."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._entries: dict[bytes, tuple[float, float]] = {}
        """(end time, lifetime from the last use in seconds) by prefix digest."""

    def split(self, request: EmulatedRequest, now: float) -> CachedTokens:
        """Return the tokens of a prompt that are read and written at time `now`, and update the cache."""
        prefixes = list(self._prefixes(request))
        if request.provider == "openai":
            read = self._read(prefixes, now)
            for prefix in prefixes:
                self._entries[prefix.digest] = now + _AUTOMATIC, _AUTOMATIC
            return CachedTokens(read=read)
        marked = [at for at, prefix in enumerate(prefixes) if prefix.lifetime]
        near = [prefix for at, prefix in enumerate(prefixes) if any(at <= m < at + _LOOKS_BACK for m in marked)]
        read = cached = self._read(near, now)
        written = written_1h = 0
        for at in marked:
            prefix = prefixes[at]
            if prefix.tokens < CACHEABLE:
                continue
            new = max(0, prefix.tokens - cached)
            cached = max(cached, prefix.tokens)
            written += new
            written_1h += new if prefix.lifetime == "1h" else 0
            lifetime = _LIFETIMES[prefix.lifetime or "5m"]
            self._entries[prefix.digest] = now + lifetime, lifetime
        return CachedTokens(read=read, written=written, written_1h=written_1h)

    def _read(self, prefixes: list[_Prefix], now: float) -> int:
        """Return the tokens of the longest cached prefix and renew its lifetime."""
        for prefix in reversed(prefixes):
            ends, lifetime = self._entries.get(prefix.digest, (0.0, 0.0))
            if prefix.tokens >= CACHEABLE and ends > now:
                self._entries[prefix.digest] = now + lifetime, lifetime
                return prefix.tokens
        return 0

    def _prefixes(self, request: EmulatedRequest) -> Iterator[_Prefix]:
        state, tokens = hashlib.blake2b(f"{request.provider} {request.model}".encode(), digest_size=16), 0
        for text, lifetime in _blocks(request.body):
            state.update(f"{len(text)} {text}".encode())
            tokens += self._count(text)
            yield _Prefix(state.digest(), tokens, lifetime)


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield the texts of a body in order, each with the lifetime of the prefix that it ends, None without a mark."""
    messages: Any = body.get("messages", body.get("input")) or []
    if isinstance(messages, str):
        messages = [{"content": messages}]
    contents: list[Any] = [body.get("system"), body.get("instructions")]
    for content in (*contents, *(message.get("content") for message in messages)):
        blocks: list[dict[str, Any]] = [{"text": content}] if isinstance(content, str) else content or []
        for block in blocks:
            mark = block.get("cache_control")
            yield str(block.get("text", "")), (mark.get("ttl") or "5m") if mark else None
