"""Configuration of one provider's model: what the registry would say of it, for a model that it does not know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from r2v.config.checks import IF_GIVEN
from r2v.constraints import Distinct, Name, NotNegative, Range, Text

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Day = Text(pattern=r"never|\d{4}-\d\d-\d\d", meaning="a day such as 2027-01-14, or never")


def _unset() -> Any:
    return field(default=None, metadata=IF_GIVEN)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model's facts, each in place of the registry's; null: as the registry says."""

    temperature: bool | None = _unset()
    """Whether requests may hold a temperature and top_p, while the model does not think."""
    thinking: Literal["never", "if_asked", "by_default", "always"] | None = _unset()
    """When the model thinks before it answers."""
    thinking_on: Literal["effort", "adaptive", "budget"] | None = _unset()
    """How it is asked to think: by an effort, by thinking.type=adaptive, or by a budget of tokens."""
    thinking_off: Literal["effort", "disabled", "between_tools"] | None = _unset()
    """How it is asked not to."""
    effort: Annotated[list[Name], Distinct()] | None = _unset()
    """The efforts that it takes, from the least."""
    tools: Literal["none", "everywhere", "responses"] | None = _unset()
    """Native tool calls: in no API, in all, or in OpenAI's Responses API alone."""
    forced_tool: bool | None = _unset()
    """Whether a request may demand that a tool is called."""
    json_schema: bool | None = _unset()
    """Whether answers can be held to a JSON schema."""
    responses: bool | None = _unset()
    """Whether it is asked by OpenAI's Responses API."""
    limit: Literal["max_tokens", "max_completion_tokens"] | None = _unset()
    """The name that chat completions take the reply's limit under."""
    min_tokens: Annotated[int, Range(at_least=1, at_most=1_000_000)] | None = _unset()
    """The least limit of a reply that it takes, in tokens."""
    cache: bool | None = _unset()
    """Whether prompts bear Anthropic's cache marks."""
    batch: bool | None = _unset()
    """Whether it can be asked by provider batches."""
    in_turn: bool | None = _unset()
    """Whether it takes only conversations of user and assistant in turn; null: learned from its refusals."""
    batch_price: NotNegative | None = _unset()
    """Factor on the price in a batch; 0.5: half the price."""
    cached_price: NotNegative | None = _unset()
    """Factor on the price of prompt tokens read from the prompt cache."""
    cache_write_price: NotNegative | None = _unset()
    """Factor on the price of prompt tokens written to the prompt cache."""
    surcharge_above: Annotated[int, Range(at_least=1, at_most=100_000_000)] | None = _unset()
    """Prompt tokens above which the whole request costs more."""
    surcharge_in: NotNegative | None = _unset()
    """Factor on the price of every prompt token of such a request."""
    surcharge_out: NotNegative | None = _unset()
    """Factor on the price of every reply token of such a request."""
    retires: Annotated[str, _Day] | None = _unset()
    """First day on which the provider refuses it; never: none is known."""
