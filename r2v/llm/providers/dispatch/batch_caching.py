"""Batch caching: whether the requests of a batch keep their conversation in the provider's cache for the next turn.

Keeping costs twice the price of what is new, and reading a tenth of what is old, so it is worth it where the next turn
comes within the hour that it is kept for, and finds it: batches that take longer, and providers whose batches miss
their cache too often, go without. A first turn may be the only one, and is not kept.
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
"""Tokens below which nothing is kept."""
_FROM_TURN = 2
"""The turn before must have been kept, which the first is not."""
_LONGEST_WAIT = 2700.0
"""Seconds that batches may take, typically: the next one has to be read within the hour."""
_FEWEST_HITS, _TRIED = 0.6, 50_000
"""Share of what was kept that must be found again, once so many tokens have been looked for."""


@runtime_checkable
class KeepsConversations(Protocol):
    """A provider whose batches can keep a conversation in its cache."""

    def kept_line(self, request: ProviderRequest) -> Mapping[str, Any]:
        """As `input_line`, with the conversation so far kept for an hour."""
        ...


def kept_tokens(request: ProviderRequest) -> int:
    """About how many of a request's prompt tokens the turn before has left in the provider's cache: all but those of
    the last two messages."""
    messages = request.body.get("messages", ())
    if request.turn < _FROM_TURN or len(messages) < _FROM_TURN:
        return 0
    new = max_prompt_tokens({"messages": messages[-2:]}) // 3
    kept = likely_prompt_tokens(request) - new
    return kept if kept >= LEAST_KEPT else 0


class BatchCaching:
    """The choice for one run."""

    def __init__(self, provider: BatchProvider | None, rate: Rate) -> None:
        self._provider, self._rate = provider, rate
        self._keeper = provider if isinstance(provider, KeepsConversations) else None
        self._possible = self._keeper is not None and rate.shape.cache and rate.cached < 1.0
        self._looked_for = self._found = 0

    def is_worth_it(self, request: ProviderRequest, typical_wait: float) -> bool:
        """Whether to keep this conversation, where batches take so many seconds, typically."""
        return (
            self._possible
            and request.turn > 0
            and typical_wait <= _LONGEST_WAIT
            and self.hits >= _FEWEST_HITS
            and likely_prompt_tokens(request) >= LEAST_KEPT
        )

    def line(self, request: ProviderRequest, typical_wait: float) -> Mapping[str, Any]:
        """The request as a line of an input file."""
        assert self._provider is not None, "it takes batches"
        if self._keeper is not None and self.is_worth_it(request, typical_wait):
            return self._keeper.kept_line(request)
        return self._provider.input_line(request)

    @property
    def hits(self) -> float:
        """Share of the kept tokens that batches have found again; 1 until enough were looked for."""
        return self._found / self._looked_for if self._looked_for >= _TRIED else 1.0

    def learn(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Take in what a batch's answer says it has read."""
        if self._possible and verdict.tokens is not None and (kept := kept_tokens(request)):
            self._looked_for += kept
            self._found += min(kept, verdict.tokens.cached)

    def usd(self, request: ProviderRequest, output: int, typical_wait: float) -> float:
        """What a request is likely to be billed in a batch."""
        prompt, kept = likely_prompt_tokens(request), kept_tokens(request)
        if not self.is_worth_it(request, typical_wait):
            return self._rate.usd(TokenCounts(fresh=prompt, output=output), batch=True)
        hit = TokenCounts(cached=kept, write_1h=prompt - kept, output=output)
        miss = TokenCounts(write_1h=prompt, output=output)
        return self.hits * self._rate.usd(hit, batch=True) + (1 - self.hits) * self._rate.usd(miss, batch=True)
