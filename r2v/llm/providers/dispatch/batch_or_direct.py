"""Choice between batches at a discount and direct calls that are answered at once (mode auto), and of batch caching.

A wave goes into a batch unless it is the tail of the run (few conversations are left, and all of them would wait for
it), or batches for all open requests save less than the wait for them costs. If the budget covers a batch but not the
calls, the wave goes into a batch.

Savings are relative to the expected bill of direct calls: from its third turn on, a conversation whose turns follow
within minutes reads earlier turns from the provider's cache, which has expired for a batch hours later (within the hour
it may hit, `BatchCaching`). A long conversation may be cheaper by direct calls, and then is called directly whatever
the wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from r2v.config import TeacherConfig
from r2v.llm.providers.dispatch.batch_polling import USUAL_WAIT
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import BatchProvider
from r2v.llm.providers.provider_requests import (
    ProviderRequest,
    RequestVerdict,
    likely_prompt_tokens,
    max_prompt_tokens,
)
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.log import logger
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
    """The choice whether a batch's requests write their conversations to the provider's prompt cache.

    A write costs twice the price of the new tokens and a read a tenth of the old ones, so a write pays if the next turn
    comes within the hour of the cache's lifetime and hits it. Conversations are therefore not cached where batches take
    longer, where batches miss the cache too often, and at a first turn, which may be the only one.
    """

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


_USUAL_OUTPUT = 200
"""Estimated tokens of a completion."""
CALL_SECONDS = 5.0
"""Estimated seconds of a direct call."""


@dataclass(frozen=True, kw_only=True)
class CollectionPlans:
    """Estimates of a collection by provider batches and by direct calls, and `line`, which names the choice."""

    usd_batch: float
    usd_direct: float
    hours_batch: float
    hours_direct: float
    line: str


def collection_plans(
    teacher: TeacherConfig,
    rate: Rate,
    tokens: TokenCounts,
    *,
    requests: float,
    episodes: float,
    turns: float,
    width: int,
) -> CollectionPlans:
    """Estimate cost and hours of a collection by batches and by direct calls.

    tokens: of all `requests` together. episodes, turns: number of episodes, and turns of each. width: episodes that
    wait for batches at the same time.
    """
    batch, direct = (rate.usd(tokens, batch=batch, requests=max(1, round(requests))) for batch in (True, False))
    rounds = math.ceil(episodes / width) * turns
    hours_batch = rounds * USUAL_WAIT / 3600
    side_by_side = min(width, teacher.max_concurrent)
    hours_direct = max(rounds, requests / side_by_side) * CALL_SECONDS / 3600
    saved, waiting = direct - batch, (hours_batch - hours_direct) * teacher.waiting_usd_per_hour
    way, reason = (
        ("batches" if saved >= waiting else "direct"),
        f"batches save ${saved:.2f}, waiting costs ${waiting:.2f}",
    )
    setting = f"teacher.waiting_usd_per_hour={teacher.waiting_usd_per_hour:g}"
    if not rate.shape.batch or rate.batch >= 1.0:
        way, reason, setting = "direct", f"no batches at a discount for {rate.model}", "teacher.model_name"
    elif teacher.mode != "auto":
        way = "batches" if teacher.mode == "batch" else "direct"
        reason = setting = f"teacher.mode={teacher.mode}"
    line = (
        f"collection plan: episodes={episodes:g} batches=${batch:.2f}/{hours_batch:.2f}h "
        f'direct=${direct:.2f}/{hours_direct:.2f}h chosen={way} reason="{reason}" setting={setting}'
    )
    return CollectionPlans(
        usd_batch=batch, usd_direct=direct, hours_batch=hours_batch, hours_direct=hours_direct, line=line
    )


class BatchOrDirect:
    """Chooses for each wave, and logs each change of the choice."""

    def __init__(
        self, policy: DispatchPolicy, tracker: SpendTracker, caching: BatchCaching, *, batches: bool = True
    ) -> None:
        self._policy, self._tracker, self._caching = policy, tracker, caching
        self._most_open = 0
        self._last_choice: bool | None = None
        self.batches_available = batches

    def use_batch(self, requests: Sequence[ProviderRequest], num_open: int, typical_wait: float) -> bool:
        """True if requests should go into a batch. num_open: requests in flight, these included. typical_wait: seconds
        that a batch takes."""
        if self._policy.mode != "auto":
            return self._policy.mode == "batch"
        if not self.batches_available or self._tracker.rate.batch >= 1.0:
            return False
        self._most_open = max(self._most_open, num_open)
        # all open requests wait at the same time, so an hour of waiting is paid for once
        saved = self.saved_usd(requests, typical_wait) * max(1.0, num_open / len(requests))
        waiting_cost = typical_wait / 3600 * self._policy.waiting_usd_per_hour
        direct_worst_case, batch_worst_case = (
            sum(self._tracker.worst_case(request, batch=batch) for request in requests) for batch in (False, True)
        )
        if direct_worst_case > self._tracker.budget.within_reach >= batch_worst_case:
            return self._choose(True, "the budget covers no direct calls")
        if num_open <= self._policy.tail * self._most_open:
            return self._choose(False, f"the last {num_open} of {self._most_open} conversations")
        if saved < waiting_cost:
            return self._choose(
                False,
                f"batches of all {num_open} open requests save ${saved:.4f}, waiting about {typical_wait / 60:.0f} min "
                f"for them costs ${waiting_cost:.4f}",
            )
        return self._choose(True, f"batches of all {num_open} open requests save about ${saved:.2f}")

    def saved_usd(self, requests: Sequence[ProviderRequest], typical_wait: float) -> float:
        """Return the expected savings in USD of a batch of requests; negative if calls with a cache are cheaper."""
        rate = self._tracker.rate
        saved = 0.0
        for request in requests:
            prompt, output = likely_prompt_tokens(request), min(_USUAL_OUTPUT, request.max_tokens)
            cached = kept_tokens(request) if rate.cached < 1.0 else 0
            direct = TokenCounts(cached=cached, write_5m=prompt - cached, output=output) if cached else None
            fresh = TokenCounts(fresh=prompt, output=output)
            saved += rate.usd(direct or fresh, batch=False) - self._caching.usd(request, output, typical_wait)
        return saved

    def _choose(self, batch: bool, reason: str) -> bool:
        if batch != self._last_choice:
            logger.info(
                "  dispatch chosen: teacher.mode=auto way=%s reason=%s", "batches" if batch else "direct", reason
            )
        self._last_choice = batch
        return batch
