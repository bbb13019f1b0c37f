"""Configuration of costs: what tokens cost, and what an endpoint's prompt cache makes of that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from r2v.constraints import NotNegative, Positive, Range, check_fields


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price per million tokens in USD, and the modelled speed behind the latencies of tables."""

    input: NotNegative
    """USD per million prompt tokens."""
    output: NotNegative
    """USD per million reply tokens."""
    seconds_per_call: NotNegative
    """Modelled seconds of a call before its first token."""
    seconds_per_token: NotNegative
    """Modelled seconds of each reply token."""


@dataclass(frozen=True, kw_only=True)
class PromptCacheConfig:
    """The prompt cache of the LLM's endpoint: prompt tokens that an earlier call of the episode sent are read again at
    a fraction of their price. The two factors are those of a provider's model, where the price table has them."""

    read: NotNegative = 0.1
    """Price of a token that is read from the cache, as a factor on the prompt price; 1: no cache."""
    write: NotNegative = 1.25
    """Price of a token that is written to it, as a factor on the prompt price."""
    min_tokens: Annotated[int, Range(at_least=1, at_most=10_000_000)] = 1024
    """Shorter prompts are not cached."""
    lifetime: Positive = 300.0
    """Seconds after the last call that still find it, counted in the world's own seconds."""


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Prices of the small policy and the LLM where no provider's price table applies."""

    slm: Price = field(
        default_factory=lambda: Price(input=0.1, output=0.4, seconds_per_call=0.02, seconds_per_token=0.001)
    )
    """The small policy, on your own machine; and its verifier, which reads at the same price."""
    llm: Price = field(
        default_factory=lambda: Price(input=3.0, output=12.0, seconds_per_call=0.6, seconds_per_token=0.02)
    )
    """The scripted teacher."""
    cache: PromptCacheConfig = field(default_factory=PromptCacheConfig)
    """The prompt cache of the LLM's endpoint."""
    ratio: Positive = 30.0
    """Normalised cost of an LLM step, where a step of the small policy costs 1."""

    def __post_init__(self) -> None:
        check_fields("cost", self)
