"""Request shape: the parameters of a model's requests apart from messages, from the model's accepted parameters and the
configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from r2v.errors import UsageError
from r2v.llm.providers.registry.accepts import Accepts

THINKING_TOKENS = 4096
"""Default number of tokens for a model's thoughts, on top of its reply's."""
_LEAST_BUDGET = 1024
"""Tokens: the least thinking budget that Anthropic accepts."""
_LEAST_RESPONSE = 16
"""Tokens: the least reply limit that OpenAI's Responses API accepts."""
_DEEPEST = ("xhigh", "max")
"""Efforts that are refused with thinking off."""

Actions = Literal["text", "json", "tools"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSettings:
    """The configured parameters of a model's requests. None: the model's own default."""

    effort: str | None = None
    thinking: Literal["enabled", "disabled"] | None = None
    thinking_tokens: int | None = None
    actions: Literal["text", "json", "tools", "auto"] = "text"
    temperature: float = 0.0
    prefix: str = "teacher."
    """Prefix of the settings' names in errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestShape:
    """Parameters of the requests to one model."""

    temperature: bool = True
    """True if requests have a temperature and top_p."""
    effort: str | None = None
    thinking: Literal["adaptive", "budget", "disabled", "between_tools"] | None = None
    """Anthropic's thinking.type, with budget for enabled; None: the field is omitted."""
    thinking_tokens: int = 0
    """Tokens for thoughts, added to those for the reply."""
    actions: Actions = "text"
    """Form of the actions: JSON in the text, JSON under a schema, or native tool calls."""
    forced_tool: bool = True
    """True if a request with tools may demand a tool call."""
    responses: bool = False
    """True if requests go to OpenAI's Responses API."""
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the token limit in a chat completion."""
    min_tokens: int = 1
    cache: bool = True
    """True if the system prompt has a cache mark."""
    batch: bool = True
    """True if the model takes provider batches."""
    in_turn: bool = False
    """True if consecutive messages of one side are joined."""

    def limit_of(self, max_tokens: int) -> int:
        """Return the token limit of a request for a reply of at most `max_tokens`; thoughts count against it too."""
        return max(max_tokens + self.thinking_tokens, self.min_tokens)


def shape_of(accepts: Accepts, settings: RequestSettings | None = None, *, model: str = "") -> RequestShape:
    """Return the shape of requests to a model. Without `settings`: its own defaults.

    Raise UsageError for a parameter that the model refuses; the error lists the accepted values.
    """
    settings = settings or RequestSettings()
    thinks = _thinks(accepts, settings, model)
    effort = _effort(accepts, settings, model, thinks)
    thinking: Literal["adaptive", "budget", "disabled", "between_tools"] | None = None
    if settings.thinking == "enabled" and accepts.thinking_on != "effort":
        thinking = accepts.thinking_on
    elif not thinks and accepts.thinking == "by_default" and accepts.thinking_off != "effort":
        thinking = accepts.thinking_off
    tokens = (settings.thinking_tokens or THINKING_TOKENS) if thinks else 0
    if thinks and accepts.thinking_on == "budget":
        tokens = max(tokens, _LEAST_BUDGET)
    actions = _actions(accepts, settings, model)
    responses = accepts.responses or (actions == "tools" and accepts.tools == "responses")
    return RequestShape(
        temperature=_temperature(accepts, settings, model, thinks),
        effort=effort,
        thinking=thinking,
        thinking_tokens=tokens,
        actions=actions,
        forced_tool=accepts.forced_tool and thinking != "budget",  # Anthropic refuses the two together
        responses=responses,
        limit=accepts.limit,
        min_tokens=max(accepts.min_tokens, _LEAST_RESPONSE if responses else 1),
        cache=accepts.cache,
        batch=accepts.batch,
        in_turn=accepts.in_turn,
    )


def _thinks(accepts: Accepts, settings: RequestSettings, model: str) -> bool:
    """True if the model thinks before it answers. Raise UsageError if the settings contradict the model."""
    off = settings.thinking == "disabled" or (settings.effort == "none" and accepts.thinking_on == "effort")
    on = settings.thinking == "enabled" or (settings.effort is not None and not off and accepts.thinking_on == "effort")
    if settings.thinking == "enabled" and accepts.thinking == "never":
        raise UsageError(f"{settings.prefix}thinking=enabled: {model} does not think; leave it out")
    if settings.thinking == "disabled" and accepts.thinking == "always":
        least = f"; the least it takes is {settings.prefix}effort={accepts.effort[0]}" if accepts.effort else ""
        raise UsageError(f"{settings.prefix}thinking=disabled: {model} always thinks{least}")
    if accepts.thinking == "if_asked":
        return on
    return accepts.thinking != "never" and not off


def _effort(accepts: Accepts, settings: RequestSettings, model: str, thinks: bool) -> str | None:
    """Return the effort of a request; None: the field is omitted."""
    effort = settings.effort
    if accepts.thinking_on == "effort" and effort is None:
        if settings.thinking == "enabled" and accepts.thinking == "if_asked":
            effort = "medium"
        elif settings.thinking == "disabled" and accepts.thinking != "never":
            effort = "none"
    if effort is not None and effort not in accepts.effort:
        accepted = f"it takes {', '.join(accepts.effort)}" if accepts.effort else "it takes none; leave it out"
        raise UsageError(f"{settings.prefix}effort={effort}: not for {model}; {accepted}")
    if effort in _DEEPEST and settings.thinking == "disabled":
        raise UsageError(f"{settings.prefix}effort={effort}: {model} takes it only while it thinks; leave thinking on")
    return effort


def _temperature(accepts: Accepts, settings: RequestSettings, model: str, thinks: bool) -> bool:
    """True if requests have a temperature. For a model that takes none, 0 and 1 pass: it samples at its own, 1, and
    `asked_rate` warns of it."""
    takes = accepts.temperature and not thinks
    if not takes and settings.temperature not in (0.0, 1.0):
        off = f", or {settings.prefix}thinking=disabled" if accepts.temperature and accepts.thinking != "always" else ""
        why = "takes a temperature only while it does not think" if accepts.temperature else "takes no temperature"
        raise UsageError(
            f"{settings.prefix}temperature={settings.temperature:g}: {model} {why}; set it to 0 (its own sampling){off}"
        )
    return takes


def _actions(accepts: Accepts, settings: RequestSettings, model: str) -> Actions:
    """Return the form of the actions. Raise UsageError for one that the model is not known to take."""
    if settings.actions == "auto":
        return "tools" if accepts.tools != "none" else "json" if accepts.json_schema else "text"
    form = settings.actions
    if (form == "tools" and accepts.tools == "none") or (form == "json" and not accepts.json_schema):
        what, field = ("tool calls", "tools=everywhere") if form == "tools" else ("a schema", "json_schema=true")
        raise UsageError(
            f"{settings.prefix}actions={form}: {model} is not known to take {what}; set it to text or auto, or "
            f"{settings.prefix}model.{field}"
        )
    return form
