"""Facts of models: what their tokens cost, and what the registry would say of a model that it does not know."""

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


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model's facts, each in place of the registry's; None: as the registry says."""

    temperature: _Flag | None = None
    """Whether requests may hold a temperature and top_p, while the model does not think."""
    thinking: Annotated[str, OneOf(values=("never", "if_asked", "by_default", "always"))] | None = None
    """When the model thinks before it answers."""
    thinking_on: Annotated[str, OneOf(values=("effort", "adaptive", "budget"))] | None = None
    """How it is asked to think: by an effort, by thinking.type=adaptive, or by a budget of tokens."""
    thinking_off: Annotated[str, OneOf(values=("effort", "disabled", "between_tools"))] | None = None
    """How it is asked not to."""
    effort: Annotated[list[Name], Distinct()] | None = None
    """The efforts that it takes, from the least."""
    tools: Annotated[str, OneOf(values=("none", "everywhere", "responses"))] | None = None
    """Native tool calls: in no API, in all, or in OpenAI's Responses API alone."""
    forced_tool: _Flag | None = None
    """Whether a request may demand that a tool is called."""
    json_schema: _Flag | None = None
    """Whether answers can be held to a JSON schema."""
    responses: _Flag | None = None
    """Whether it is asked by OpenAI's Responses API."""
    limit: Annotated[str, OneOf(values=("max_tokens", "max_completion_tokens"))] | None = None
    """The name that chat completions take the reply's limit under."""
    min_tokens: _Tokens | None = None
    """The least limit of a reply that it takes, in tokens."""
    cache: _Flag | None = None
    """Whether prompts bear Anthropic's cache marks."""
    batch: _Flag | None = None
    """Whether it can be asked by provider batches."""
    in_turn: _Flag | None = None
    """Whether it takes only conversations of user and assistant in turn; None: learned from its refusals."""
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
    """Return the facts that are not None, in the order of `ModelFacts`. Raise UsageError naming the key for a fact
    that there is not, and for a value that it cannot have."""
    names = [item.name for item in dataclasses.fields(ModelFacts)]
    members(key, values, names)
    check_fields(key, ModelFacts(**values))
    return {name: values[name] for name in names if values.get(name) is not None}
