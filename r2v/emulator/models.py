"""Emulated models: served names, accepted parameters, and thinking tokens.

A retired name, or one that is spelled like a provider's model without being one, gets a 404 as at the provider. A
parameter that the API refuses for a model is refused with the same message: a temperature, an effort or a kind of
thinking that the model does not support, tools in an API without them, an unknown key. Any other name represents a
self-hosted server and accepts everything.

The accepted parameters come from the registry (`r2v.llm.providers.registry`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import date
from typing import Any

from r2v.emulator.bodies import ApiError
from r2v.llm.providers.registry.accepts import Accepts, accepts_of
from r2v.llm.providers.registry.lifecycle import lifecycle_of
from r2v.llm.providers.registry.listed import listed_price

_OWN_STYLE = {"openai": r"(gpt-\d|o\d|chatgpt).*", "anthropic": r"claude-.*"}
_THOUGHTS = {"none": 0, "minimal": 20, "low": 100, "medium": 400, "high": 1200, "xhigh": 2400, "max": 3600}
"""Tokens that a thinking model spends before its answer, by effort."""
_DEEPEST = ("xhigh", "max")
"""Efforts that a model accepts only with thinking."""
_USUAL = 400
"""Thinking tokens without a named effort."""

_COMMON = {"model", "temperature", "top_p", "tools", "tool_choice", "metadata", "stream", "service_tier"}
_OPENAI = {
    "parallel_tool_calls",
    "stream_options",
    "store",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
}
PARAMETERS: Mapping[str, Collection[str]] = {
    "/v1/messages": _COMMON
    | {"messages", "max_tokens", "system", "thinking", "output_config", "top_k", "stop_sequences", "cache_control"},
    "/v1/chat/completions": _COMMON
    | _OPENAI
    | {"messages", "max_tokens", "max_completion_tokens", "reasoning_effort", "response_format", "seed", "n", "stop"}
    | {"logprobs", "top_logprobs", "frequency_penalty", "presence_penalty", "logit_bias", "verbosity"},
    "/v1/responses": _COMMON
    | _OPENAI
    | {"input", "instructions", "max_output_tokens", "reasoning", "text", "include", "truncation", "top_logprobs"}
    | {"previous_response_id", "conversation", "background", "max_tool_calls"},
}
"""Allowed keys of a request by endpoint."""


def refusal_of(
    provider: str, path: str, body: Mapping[str, Any], day: date, served: Collection[str] = ()
) -> ApiError | None:
    """Return the provider's refusal of a request on this day, None if it is accepted. served: further model names that
    are served, such as a future model."""
    model = str(body.get("model"))
    own = re.fullmatch(_OWN_STYLE[provider], model) is not None
    if not own:
        return None
    if model not in served:
        listed = listed_price(provider, model, day) is not None
        if not listed or lifecycle_of(provider, model).retired(day):
            return _no_model(provider, model, listed=listed)
    accepts = accepts_of(provider, model)
    for key in sorted(body.keys() - PARAMETERS[path]):
        if provider == "anthropic":
            return ApiError(400, f"{key}: Extra inputs are not permitted")
        return ApiError(400, f"Unknown parameter: '{key}'.", code="unknown_parameter", param=key)
    if provider == "anthropic":
        return _by_anthropic(accepts, body)
    return _by_openai(accepts, path, body)


def _no_model(provider: str, model: str, *, listed: bool) -> ApiError:
    if provider == "anthropic":
        return ApiError(404, f"model: {model}")
    reason = "has been deprecated" if listed else "does not exist or you do not have access to it"
    return ApiError(404, f"The model `{model}` {reason}.", code="model_not_found")


def _by_anthropic(accepts: Accepts, body: Mapping[str, Any]) -> ApiError | None:
    problem: str | None = None
    thinking, effort = (body.get("thinking") or {}).get("type"), (body.get("output_config") or {}).get("effort")
    kinds = {"adaptive": "adaptive", "budget": "enabled", "effort": None}
    allowed = {kinds[accepts.thinking_on] if accepts.thinking != "never" else None, accepts.thinking_off}
    allowed |= {"disabled"} if accepts.thinking in ("never", "if_asked") else set()
    if thinking is not None and thinking not in allowed:
        problem = (
            f'"thinking.type.{thinking}" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    elif thinking == "enabled" and not 1024 <= body["thinking"].get("budget_tokens", 0) < body["max_tokens"]:
        problem = "`max_tokens` must be greater than `thinking.budget_tokens`, which is at least 1024"
    elif effort is not None and not accepts.effort:
        problem = "This model does not support the effort parameter."
    elif effort is not None and (effort not in accepts.effort or (thinking == "disabled" and effort in _DEEPEST)):
        problem = f"output_config.effort: {effort} is not supported for this model in this request"
    elif not accepts.temperature and (given := [key for key in ("temperature", "top_p", "top_k") if key in body]):
        problem = f"`{given[0]}` is deprecated for this model."
    elif thinking in ("enabled", "adaptive") and body.get("temperature", 1) != 1:
        problem = "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
    elif "temperature" in body and "top_p" in body and accepts.thinking != "never":
        problem = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    elif (body.get("tool_choice") or {}).get("type") in ("any", "tool") and not accepts.forced_tool:
        problem = "tool_choice: forced tool use is not supported for this model."
    elif "format" in (body.get("output_config") or {}) and not accepts.json_schema:
        problem = "This model does not support structured outputs."
    return None if problem is None else ApiError(400, problem)


def _by_openai(accepts: Accepts, path: str, body: Mapping[str, Any]) -> ApiError | None:
    def refused(message: str, param: str, code: str | None = "unsupported_value") -> ApiError:
        return ApiError(400, message, code=code, param=param)

    chat, model = path.endswith("/chat/completions"), body["model"]
    effort = body.get("reasoning_effort") if chat else (body.get("reasoning") or {}).get("effort")
    name = "reasoning_effort" if chat else "reasoning.effort"
    thinks = _openai_thinks(accepts, effort)
    if chat and accepts.responses:
        text = "This is not a chat model and thus not supported in the v1/chat/completions endpoint."
        return ApiError(404, text, param="model")
    if effort is not None and effort not in accepts.effort:
        if not accepts.effort:
            return refused(f"Unsupported parameter: '{name}' is not supported with this model.", name)
        values = ", ".join(f"'{value}'" for value in accepts.effort)
        text = f"Unsupported value: '{effort}' is not supported with the '{model}' model."
        return refused(f"{text} Supported values are: {values}.", name)
    if "max_tokens" in body and accepts.thinking != "never":
        text = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        return refused(f"Unsupported parameter: {text}", "max_tokens", "unsupported_parameter")
    if not chat and body.get("max_output_tokens", 16) < 16:
        got = body["max_output_tokens"]
        text = "Invalid 'max_output_tokens': integer below minimum value."
        return refused(
            f"{text} Expected a value >= 16, but got {got} instead.", "max_output_tokens", "integer_below_min_value"
        )
    for key in ("temperature", "top_p"):
        if key in body and (thinks or not accepts.temperature) and (body[key] != 1 or not accepts.temperature):
            text = f"Unsupported parameter: '{key}' is not supported with this model."
            return refused(text, key, "unsupported_parameter")
    if chat and body.get("tools") and (accepts.tools == "none" or (accepts.tools == "responses" and thinks)):
        text = f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions."
        text += " To use function tools, use /v1/responses or set reasoning_effort to 'none'."
        return refused(text, name, None)
    format_ = (body.get("response_format") if chat else (body.get("text") or {}).get("format")) or {}
    if format_.get("type") == "json_schema" and not accepts.json_schema:
        return refused("Invalid parameter: 'json_schema' is not supported with this model.", "response_format", None)
    return None


def _openai_thinks(accepts: Accepts, effort: str | None) -> bool:
    if effort is not None:
        return effort != "none"
    return accepts.thinking in ("by_default", "always")


def thoughts(provider: str, model: str, body: Mapping[str, Any]) -> int:
    """Return the tokens that a model spends on thinking before it answers this request."""
    if re.fullmatch(_OWN_STYLE[provider], model) is None:
        return 0
    accepts = accepts_of(provider, model)
    if provider == "openai":
        effort = body.get("reasoning_effort") or (body.get("reasoning") or {}).get("effort")
        return _THOUGHTS.get(effort or "", _USUAL) if _openai_thinks(accepts, effort) else 0
    kind = (body.get("thinking") or {}).get("type")
    thinks = kind in ("adaptive", "enabled") or (kind is None and accepts.thinking in ("by_default", "always"))
    effort = (body.get("output_config") or {}).get("effort")
    return _THOUGHTS.get(effort or "", _USUAL) if thinks else 0
