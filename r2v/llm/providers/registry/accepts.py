"""What a model accepts: which parameters its requests may hold, found by its name, and set by configuration.

    accepts_of("anthropic", "claude-opus-5-5").temperature         # False: the API answers 400
    accepts_of("openai", "gpt-7-nova")                             # nobody has listed it: as the newest

An endpoint of one's own that serves a model nobody has listed is taken for a server that speaks the older common core:
a temperature, `max_tokens`, and no more.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from r2v.llm.providers.registry.table import api_name, overlay

Thinks = Literal["never", "if_asked", "by_default", "always"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepts:
    """What requests to a model may hold."""

    temperature: bool = True
    """A temperature and top_p, while the model does not think."""
    thinking: Thinks = "never"
    """When the model thinks before it answers; its thoughts are billed and count against the reply's limit."""
    thinking_on: Literal["effort", "adaptive", "budget"] = "effort"
    """How it is asked to think: by an effort, by thinking.type=adaptive, or by a budget of tokens."""
    thinking_off: Literal["effort", "disabled", "between_tools"] | None = None
    """How it is asked not to; None: it cannot be, or does not unless asked."""
    effort: tuple[str, ...] = ()
    """The efforts that it takes, from the least."""
    tools: Literal["none", "everywhere", "responses"] = "none"
    """Native tool calls: in no API of its provider, in all, or in OpenAI's Responses API alone."""
    forced_tool: bool = True
    """A request may demand that a tool is called."""
    json_schema: bool = False
    """Answers that follow a JSON schema."""
    responses: bool = False
    """Asked by OpenAI's Responses API, whatever the request holds."""
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name that chat completions take the reply's limit under."""
    min_tokens: int = 1
    """The least limit of a reply that is taken."""
    cache: bool = True
    """Marks in the prompt up to which it is cached (Anthropic's cache_control)."""
    batch: bool = True
    """Provider batches."""
    in_turn: bool = False
    """Only conversations of user and assistant in turn; where it is not known, a refusal shows it."""


COMPATIBLE = Accepts(cache=False, json_schema=False)
"""A server that speaks a provider's API, and of whose model nothing is known."""


@functools.cache
def accepts_of(provider: str, model: str, *, base_url: str | None = None) -> Accepts:
    """What this model accepts, under any of its names. base_url: another endpoint than the provider's own, where only
    names that the table knows are taken for its models."""
    name, rules = api_name(provider, model), overlay()["accepts"].get(provider)
    if rules is None:
        return COMPATIBLE
    own = base_url is None
    for index, rule in enumerate(rules):
        if re.fullmatch(rule["models"], name) and (own or index < len(rules) - 1 or _looks_like(provider, name)):
            found = with_fields(Accepts(), {key: value for key, value in rule.items() if key != "models"})
            limit: Literal["max_tokens", "max_completion_tokens"]
            limit = "max_completion_tokens" if provider == "openai" else "max_tokens"
            return replace(found, limit=limit)
    return COMPATIBLE


def _looks_like(provider: str, name: str) -> bool:
    """Whether a name is in its provider's own style: an endpoint that resells it serves the provider's model."""
    return re.fullmatch({"openai": r"gpt-\d.*|o\d.*", "anthropic": r"claude-.*"}[provider], name) is not None


def with_fields(accepts: Accepts, fields: Mapping[str, Any]) -> Accepts:
    """The same with some fields changed; lists become tuples."""
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return replace(accepts, **plain)
