"""Batch caching: the choice whether a batch's requests write their conversations to the provider's prompt cache.

A write costs twice the price of the new tokens and a read a tenth of the old ones, so a write pays if the next turn
comes within the hour of the cache's lifetime and hits it. Conversations are therefore not cached where batches take
longer, where batches miss the cache too often, and at a first turn, which may be the only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import BatchProvider
from r2v.llm.providers.provider_requests import (
    ProviderRequest,
    RequestVerdict,
    likely_prompt_tokens,
    max_prompt_tokens,
)
from r2v.wire.exchange import TokenCounts

LEAST_KEPT = 1024
"""Tokens of a prompt below which the provider caches nothing."""
_FROM_TURN = 2
"""First turn that can hit the cache: its preceding turn is not the first, which is never cached."""
_LONGEST_WAIT = 2700.0
"""Longest typical time of a batch in seconds: the next turn must read the cache within its hour."""
_FEWEST_HITS, _TRIED = 0.6, 50_000
"""Least hit rate of cached tokens, required after so many tokens."""


@runtime_checkable
class KeepsConversations(Protocol):
    """A provider whose batches can write a conversation to its prompt cache."""

    def kept_line(self, request: ProviderRequest) -> Mapping[str, Any]:
        """Return the line of `input_line` with the conversation so far cached for an hour."""
        ...


def kept_tokens(request: ProviderRequest) -> int:
    """Return an estimate of a request's prompt tokens that its preceding turn has cached: all but those of the last two
    messages."""
    messages = request.body.get("messages", ())
    if request.turn < _FROM_TURN or len(messages) < _FROM_TURN:
        return 0
    new = max_prompt_tokens({"messages": messages[-2:]}) // 3
    cached = likely_prompt_tokens(request) - new
    return cached if cached >= LEAST_KEPT else 0


class BatchCaching:
    """The caching choice for the batches of one run."""

    def __init__(self, provider: BatchProvider | None, rate: Rate) -> None:
        self._provider, self._rate = provider, rate
        self._keeper = provider if isinstance(provider, KeepsConversations) else None
        self._possible = self._keeper is not None and rate.shape.cache and rate.cached < 1.0
        self._expected = self._hit = 0

    def is_worth_it(self, request: ProviderRequest, typical_wait: float) -> bool:
        """True if a batch should cache this conversation. typical_wait: seconds that a batch takes."""
        return (
            self._possible
            and request.turn > 0
            and typical_wait <= _LONGEST_WAIT
            and self.hits >= _FEWEST_HITS
            and likely_prompt_tokens(request) >= LEAST_KEPT
        )

    def line(self, request: ProviderRequest, typical_wait: float) -> Mapping[str, Any]:
        """Return the request as a line of an input file."""
        assert self._provider is not None, "only a provider of batches has lines"
        if self._keeper is not None and self.is_worth_it(request, typical_wait):
            return self._keeper.kept_line(request)
        return self._provider.input_line(request)

    @property
    def hits(self) -> float:
        """Hit rate of cached tokens in batches; 1 until enough tokens were tried."""
        return self._hit / self._expected if self._expected >= _TRIED else 1.0

    def learn(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Record the cached tokens that a batch's answer reports."""
        if self._possible and verdict.tokens is not None and (expected := kept_tokens(request)):
            self._expected += expected
            self._hit += min(expected, verdict.tokens.cached)

    def usd(self, request: ProviderRequest, output: int, typical_wait: float) -> float:
        """Return the expected USD of a request in a batch, over cache hits and misses."""
        prompt, cached = likely_prompt_tokens(request), kept_tokens(request)
        if not self.is_worth_it(request, typical_wait):
            return self._rate.usd(TokenCounts(fresh=prompt, output=output), batch=True)
        hit = TokenCounts(cached=cached, write_1h=prompt - cached, output=output)
        miss = TokenCounts(write_1h=prompt, output=output)
        return self.hits * self._rate.usd(hit, batch=True) + (1 - self.hits) * self._rate.usd(miss, batch=True)
