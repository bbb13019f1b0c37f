"""Facts of models: prices of tokens, and capabilities of models that the registry does not know."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from r2v.constraints import Distinct, Name, NotNegative, OneOf, Positive, Range, Text, check_fields, members

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Day = Text(pattern=r"never|\d{4}-\d\d-\d\d", meaning="a day such as 2027-01-14, or never")
_Flag = Annotated[bool, OneOf(values=(True, False))]
_Tokens = Annotated[int, Range(at_least=1, at_most=100_000_000)]


@dataclass(frozen=True, kw_only=True)
class TokenPrice:
    """Price per million tokens in USD."""

    input: NotNegative
    """USD per million prompt tokens."""
    output: NotNegative
    """USD per million reply tokens."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price per million tokens in USD, and the modelled speed used for latencies in tables."""

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
    """Prices of the small policy and the LLM if no provider's price table applies."""

    slm: TokenPrice = field(default_factory=lambda: TokenPrice(input=0.1, output=0.4))
    """Price of the small policy on your own machine, and of its verifier."""
    llm: TokenPrice = field(default_factory=lambda: TokenPrice(input=3.0, output=12.0))
    """Price of the scripted teacher."""
    cache_min_tokens: Annotated[int, Range(at_least=1, at_most=10_000_000)] = 1024
    """Minimum length of prompts that the LLM's endpoint caches, in tokens."""
    ratio: Positive = 30.0
    """Normalised cost of an LLM step; a step of the small policy costs 1."""

    @property
    def slm_price(self) -> Price:
        """`slm` with a modelled speed: a model of a few B parameters on one GPU."""
        return Price(input=self.slm.input, output=self.slm.output, seconds_per_call=0.02, seconds_per_token=0.001)

    @property
    def llm_price(self) -> Price:
        """`llm` with a modelled speed: a large model behind an API."""
        return Price(input=self.llm.input, output=self.llm.output, seconds_per_call=0.6, seconds_per_token=0.02)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model's facts, each overriding the registry's; None: as in the registry."""

    temperature: _Flag | None = None
    """True if requests may hold a temperature and top_p, while the model does not think."""
    thinking: Annotated[str, OneOf(values=("never", "if_asked", "by_default", "always"))] | None = None
    """Condition under which the model thinks before it answers."""
    thinking_on: Annotated[str, OneOf(values=("effort", "adaptive", "budget"))] | None = None
    """Parameter that turns thinking on: an effort, thinking.type=adaptive, or a budget of tokens."""
    thinking_off: Annotated[str, OneOf(values=("effort", "disabled", "between_tools"))] | None = None
    """Parameter that turns thinking off."""
    effort: Annotated[list[Name], Distinct()] | None = None
    """Allowed efforts, lowest first."""
    tools: Annotated[str, OneOf(values=("none", "everywhere", "responses"))] | None = None
    """Native tool calls: in no API, in all, or in OpenAI's Responses API alone."""
    forced_tool: _Flag | None = None
    """True if a request may force a tool call."""
    json_schema: _Flag | None = None
    """True if answers can be constrained to a JSON schema."""
    responses: _Flag | None = None
    """True if it is called through OpenAI's Responses API."""
    limit: Annotated[str, OneOf(values=("max_tokens", "max_completion_tokens"))] | None = None
    """Parameter of chat completions for the reply's limit."""
    min_tokens: _Tokens | None = None
    """Smallest limit of a reply that it accepts, in tokens."""
    cache: _Flag | None = None
    """True if prompts carry Anthropic's cache marks."""
    batch: _Flag | None = None
    """True if it accepts provider batches."""
    in_turn: _Flag | None = None
    """True if user and assistant messages must alternate; None: learned from its refusals."""
    batch_price: NotNegative | None = None
    """Factor on the price in a batch; 0.5: half the price."""
    cached_price: NotNegative | None = None
    """Factor on the price of prompt tokens read from the prompt cache."""
    cache_write_price: NotNegative | None = None
    """Factor on the price of prompt tokens written to the prompt cache."""
    surcharge_above: _Tokens | None = None
    """Prompt tokens above which the whole request costs more."""
    surcharge_in: NotNegative | None = None
    """Factor on the price of every prompt token of such a request."""
    surcharge_out: NotNegative | None = None
    """Factor on the price of every reply token of such a request."""
    retires: Annotated[str, _Day] | None = None
    """First day on which the provider refuses it; never: none is known."""


def given_facts(key: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that are not None, in their order. Raise UsageError naming the key of an unknown or bad one."""
    names = [item.name for item in dataclasses.fields(ModelFacts)]
    members(key, values, names)
    check_fields(key, ModelFacts(**values))
    return {name: values[name] for name in names if values.get(name) is not None}
