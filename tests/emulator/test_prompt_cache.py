"""The emulated prompt caches keep conversations for each provider's published time, and bill the written tokens."""

from __future__ import annotations

from typing import Any

from r2v.emulator.bodies import parse_request
from r2v.emulator.prompt_cache import CachedTokens, PromptCaches
from r2v.llm.scripted import count_tokens

PAGE = "word " * 1100


def anthropic(*texts: str, ttl: str | None = None) -> Any:
    messages: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]
    if ttl is not None:
        mark = {"type": "ephemeral", "ttl": ttl}
        messages[-1]["content"] = [{"type": "text", "text": texts[-1], "cache_control": mark}]
    return parse_request("anthropic", {"model": "m", "max_tokens": 9, "messages": messages}, None)


def test_a_marked_conversation_is_read_by_its_next_turn_until_its_time_is_over() -> None:
    for ttl, life in (("5m", 300), ("1h", 3600)):
        caches, kept = PromptCaches(count_tokens), 1100 if ttl == "1h" else 0
        assert caches.split(anthropic(PAGE, ttl=ttl), 0.0) == CachedTokens(written=1100, written_1h=kept)
        following = anthropic(PAGE, "click", PAGE, ttl=ttl)
        assert caches.split(following, life - 1).read == 1100
        assert caches.split(anthropic(PAGE, "other", "x", ttl=ttl), 2 * life - 2).read == 1100, "a use renews it"
        assert caches.split(anthropic(PAGE, "more", "x", ttl=ttl), 4 * life) == CachedTokens(
            written=1102, written_1h=1102 if ttl == "1h" else 0
        )


def test_what_is_short_or_unmarked_is_not_kept_and_openai_keeps_unasked() -> None:
    caches = PromptCaches(count_tokens)
    assert caches.split(anthropic("a word", ttl="5m"), 0.0) == CachedTokens()
    assert caches.split(anthropic(PAGE), 0.0) == CachedTokens() == caches.split(anthropic(PAGE), 1.0)
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": PAGE}]}
    assert caches.split(parse_request("openai", body, None), 0.0) == CachedTokens()
    body = {"model": "m", "messages": [*body["messages"], {"role": "assistant", "content": "click"}]}
    assert caches.split(parse_request("openai", body, None), 1799.0) == CachedTokens(read=1100)
    assert caches.split(parse_request("openai", body, None), 9999.0) == CachedTokens()
