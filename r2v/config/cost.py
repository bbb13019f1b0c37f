"""Configuration of costs: what tokens cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from r2v.constraints import NotNegative, Positive, Range, check_fields


@dataclass(frozen=True, kw_only=True)
class TokenPrice:
    """Price per million tokens in USD."""

    input: NotNegative
    """USD per million prompt tokens."""
    output: NotNegative
    """USD per million reply tokens."""


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

    @property
    def of_tokens(self) -> TokenPrice:
        """The price without the speed."""
        return TokenPrice(input=self.input, output=self.output)


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Prices of the small policy and the LLM where no provider's price table applies."""

    slm: TokenPrice = field(default_factory=lambda: TokenPrice(input=0.1, output=0.4))
    """The small policy, on your own machine; and its verifier, which reads at the same price."""
    llm: TokenPrice = field(default_factory=lambda: TokenPrice(input=3.0, output=12.0))
    """The scripted teacher."""
    cache_min_tokens: Annotated[int, Range(at_least=1, at_most=10_000_000)] = 1024
    """Shorter prompts are not cached by the LLM's endpoint."""
    ratio: Positive = 30.0
    """Normalised cost of an LLM step, where a step of the small policy costs 1."""

    def __post_init__(self) -> None:
        check_fields("cost", self)

    @property
    def slm_price(self) -> Price:
        """`slm` with a modelled speed: a model of a few B parameters on one GPU."""
        return Price(input=self.slm.input, output=self.slm.output, seconds_per_call=0.02, seconds_per_token=0.001)

    @property
    def llm_price(self) -> Price:
        """`llm` with a modelled speed: a large model behind an API."""
        return Price(input=self.llm.input, output=self.llm.output, seconds_per_call=0.6, seconds_per_token=0.02)
