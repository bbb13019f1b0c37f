"""Accepted parameters of a model's requests, by its name or by configuration.

    accepts_of("anthropic", "claude-opus-5-5").temperature         # False: the API answers 400
    accepts_of("openai", "gpt-7-nova")                             # unlisted: as the newest model

An unlisted model behind another endpoint than the provider's is assumed to take the older common core only: a
temperature and `max_tokens`.
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
    """Parameters that a model accepts in its requests."""

    temperature: bool = True
    """A temperature and top_p, while the model does not think."""
    thinking: Thinks = "never"
    """When the model thinks before it answers; its thoughts are billed and count against the reply's limit."""
    thinking_on: Literal["effort", "adaptive", "budget"] = "effort"
    """Parameter that turns thinking on: an effort, thinking.type=adaptive, or a budget of tokens."""
    thinking_off: Literal["effort", "disabled", "between_tools"] | None = None
    """Parameter that turns thinking off; None: it cannot be turned off, or is off by default."""
    effort: tuple[str, ...] = ()
    """Accepted efforts, from the least."""
    tools: Literal["none", "everywhere", "responses"] = "none"
    """Native tool calls: in no API of its provider, in all, or in OpenAI's Responses API only."""
    forced_tool: bool = True
    """True if a request may demand a tool call."""
    json_schema: bool = False
    """Answers that follow a JSON schema."""
    responses: bool = False
    """True if every request goes to OpenAI's Responses API."""
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the reply's token limit in chat completions."""
    min_tokens: int = 1
    """Least accepted token limit of a reply."""
    cache: bool = True
    """Marks in the prompt up to which it is cached (Anthropic's cache_control)."""
    batch: bool = True
    """Provider batches."""
    in_turn: bool = False
    """True if user and assistant must alternate; if unlisted, a refusal shows it."""


COMPATIBLE = Accepts(cache=False, json_schema=False)
"""An unknown model behind a server with a provider's API."""


@functools.cache
def accepts_of(provider: str, model: str, *, base_url: str | None = None) -> Accepts:
    """Return the accepted parameters of a model under any of its names. base_url: another endpoint than the provider's
    own, where only listed names, or names in the provider's style, count as the provider's models."""
    name, rules = api_name(provider, model), overlay()["accepts"].get(provider)
    if rules is None:
        return COMPATIBLE
    own = base_url is None
    # the last rule is the provider's catch-all for its newest models, too generous for an unknown server
    for index, rule in enumerate(rules):
        if re.fullmatch(rule["models"], name) and (own or index < len(rules) - 1 or _looks_like(provider, name)):
            accepts = with_fields(Accepts(), {key: value for key, value in rule.items() if key != "models"})
            limit: Literal["max_tokens", "max_completion_tokens"]
            limit = "max_completion_tokens" if provider == "openai" else "max_tokens"
            return replace(accepts, limit=limit)
    return COMPATIBLE


def _looks_like(provider: str, name: str) -> bool:
    """True if a name is in its provider's own style, as at an endpoint that resells the provider's models."""
    return re.fullmatch({"openai": r"gpt-\d.*|o\d.*", "anthropic": r"claude-.*"}[provider], name) is not None


def with_fields(accepts: Accepts, fields: Mapping[str, Any]) -> Accepts:
    """Return a copy with some fields changed; lists become tuples."""
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return replace(accepts, **plain)
