"""The request's shape: what a request to one model holds beside its messages, decided once from what the model accepts
and what the configuration asks for.

    shape = shape_of(accepts_of("openai", "gpt-6-luna"), Asked(effort="low"))
    shape.limit_of(300)        # 300 tokens of text and room for the thoughts before it
    shape.temperature          # False: the model thinks, and takes none while it does
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from r2v.errors import UsageError
from r2v.llm.providers.registry.accepts import Accepts

THINKING_TOKENS = 4096
"""Tokens that a model which thinks may spend on it beside its reply, unless told otherwise."""
_LEAST_BUDGET = 1024
"""The least budget of thinking that Anthropic takes."""
_LEAST_RESPONSE = 16
"""The least limit that OpenAI's Responses API takes."""
_DEEPEST = ("xhigh", "max")
"""Efforts that need thinking."""

Actions = Literal["text", "json", "tools"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the configuration asks of a model. None: the model's own default."""

    effort: str | None = None
    thinking: Literal["enabled", "disabled"] | None = None
    thinking_tokens: int | None = None
    actions: Literal["text", "json", "tools", "auto"] = "text"
    temperature: float = 0.0
    prefix: str = "teacher."
    """What stands before a setting's name where it is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestShape:
    """What a request holds."""

    temperature: bool = True
    """A temperature and top_p."""
    effort: str | None = None
    thinking: Literal["adaptive", "budget", "disabled", "between_tools"] | None = None
    """Anthropic's thinking.type, budget for enabled; None: the field is left out."""
    thinking_tokens: int = 0
    """Tokens for thoughts, on top of those for the reply."""
    actions: Actions = "text"
    """How actions come back: as JSON in the text, as JSON that a schema holds to, or as native tool calls."""
    forced_tool: bool = True
    """Whether a request with tools may demand that one is called."""
    responses: bool = False
    """Sent to OpenAI's Responses API."""
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name of a chat completion's limit."""
    min_tokens: int = 1
    cache: bool = True
    """The system prompt bears a cache mark."""
    batch: bool = True
    """The model can be asked by provider batches."""
    in_turn: bool = False
    """Messages of one side that follow each other are joined."""

    def limit_of(self, max_tokens: int) -> int:
        """The limit of a request for a reply of at most `max_tokens`: thoughts count against it too."""
        return max(max_tokens + self.thinking_tokens, self.min_tokens)


def shape_of(accepts: Accepts, asked: Asked | None = None, *, model: str = "") -> RequestShape:
    """The shape of requests to a model. Without `asked`: its own defaults.

    Raises UsageError where the model does not take what is asked for: the parameter, the model, what it takes.
    """
    asked = asked or Asked()
    thinks = _thinks(accepts, asked, model)
    effort = _effort(accepts, asked, model, thinks)
    thinking: Literal["adaptive", "budget", "disabled", "between_tools"] | None = None
    if asked.thinking == "enabled" and accepts.thinking_on != "effort":
        thinking = accepts.thinking_on
    elif not thinks and accepts.thinking == "by_default" and accepts.thinking_off != "effort":
        thinking = accepts.thinking_off
    tokens = (asked.thinking_tokens or THINKING_TOKENS) if thinks else 0
    if thinks and accepts.thinking_on == "budget":
        tokens = max(tokens, _LEAST_BUDGET)
    actions = _actions(accepts, asked, model)
    responses = accepts.responses or (actions == "tools" and accepts.tools == "responses")
    return RequestShape(
        temperature=_temperature(accepts, asked, model, thinks),
        effort=effort,
        thinking=thinking,
        thinking_tokens=tokens,
        actions=actions,
        forced_tool=accepts.forced_tool and thinking != "budget",
        responses=responses,
        limit=accepts.limit,
        min_tokens=max(accepts.min_tokens, _LEAST_RESPONSE if responses else 1),
        cache=accepts.cache,
        batch=accepts.batch,
        in_turn=accepts.in_turn,
    )


def _thinks(accepts: Accepts, asked: Asked, model: str) -> bool:
    """Whether the model thinks before it answers."""
    off = asked.thinking == "disabled" or (asked.effort == "none" and accepts.thinking_on == "effort")
    on = asked.thinking == "enabled" or (asked.effort is not None and not off and accepts.thinking_on == "effort")
    if asked.thinking == "enabled" and accepts.thinking == "never":
        raise UsageError(f"{asked.prefix}thinking=enabled: {model} does not think; leave it out")
    if asked.thinking == "disabled" and accepts.thinking == "always":
        least = f"; the least it takes is {asked.prefix}effort={accepts.effort[0]}" if accepts.effort else ""
        raise UsageError(f"{asked.prefix}thinking=disabled: {model} always thinks{least}")
    if accepts.thinking == "if_asked":
        return on
    return accepts.thinking != "never" and not off


def _effort(accepts: Accepts, asked: Asked, model: str, thinks: bool) -> str | None:
    """The effort that a request names."""
    effort = asked.effort
    if accepts.thinking_on == "effort" and effort is None:
        if asked.thinking == "enabled" and accepts.thinking == "if_asked":
            effort = "medium"
        elif asked.thinking == "disabled" and accepts.thinking != "never":
            effort = "none"
    if effort is not None and effort not in accepts.effort:
        taken = f"it takes {', '.join(accepts.effort)}" if accepts.effort else "it takes none; leave it out"
        raise UsageError(f"{asked.prefix}effort={effort}: not for {model}; {taken}")
    if effort in _DEEPEST and asked.thinking == "disabled":
        raise UsageError(f"{asked.prefix}effort={effort}: {model} takes it only while it thinks; leave thinking on")
    return effort


def _temperature(accepts: Accepts, asked: Asked, model: str, thinks: bool) -> bool:
    """Whether requests name a temperature. 0 and 1 pass where the model takes none: it samples by its own, which is 1,
    and whoever runs it is told."""
    takes = accepts.temperature and not thinks
    if not takes and asked.temperature not in (0.0, 1.0):
        off = f", or {asked.prefix}thinking=disabled" if accepts.temperature and accepts.thinking != "always" else ""
        why = "takes a temperature only while it does not think" if accepts.temperature else "takes no temperature"
        raise UsageError(
            f"{asked.prefix}temperature={asked.temperature:g}: {model} {why}; set it to 0 (its own sampling){off}"
        )
    return takes


def _actions(accepts: Accepts, asked: Asked, model: str) -> Actions:
    """How actions come back."""
    if asked.actions == "auto":
        return "tools" if accepts.tools != "none" else "json" if accepts.json_schema else "text"
    if (asked.actions == "tools" and accepts.tools == "none") or (asked.actions == "json" and not accepts.json_schema):
        what, field = (
            ("tool calls", "tools=everywhere") if asked.actions == "tools" else ("a schema", "json_schema=true")
        )
        raise UsageError(
            f"{asked.prefix}actions={asked.actions}: {model} is not known to take {what}; set it to text or auto, or "
            f"{asked.prefix}model.{field}"
        )
    return asked.actions
