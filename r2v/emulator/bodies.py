"""Request bodies: requests parsed from each provider's JSON, and errors in its format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from r2v.emulator.answers import EmulatedRequest
from r2v.wire.message import Message, Role

Json = dict[str, Any]

_ROLES: dict[str, Role] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    529: "overloaded_error",
}
OPENAI_ERRORS = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    429: "requests",
}
CREDIT = {
    "openai": "You exceeded your current quota, please check your plan and billing details.",
    "anthropic": "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
    "upgrade or purchase credits.",
}


def error_body(
    provider: str,
    status: int,
    message: str,
    *,
    code: str | None = None,
    kind: str | None = None,
    param: str | None = None,
) -> Json:
    """The body of an error response. `kind` replaces the type that goes with the status; `param` is the parameter that
    OpenAI names."""
    if provider == "anthropic":
        return {
            "type": "error",
            "error": {"type": kind or ANTHROPIC_ERRORS.get(status, "api_error"), "message": message},
            "request_id": "req_emulated",
        }
    return {
        "error": {
            "message": message,
            "type": kind or OPENAI_ERRORS.get(status, "server_error"),
            "param": param,
            "code": code,
        }
    }


def parse_request(provider: str, body: Json, custom_id: str | None) -> EmulatedRequest:
    """The request in a body of chat/completions, responses or messages. Raises ValueError, with the message
    that the provider would give, where it is not one."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ValueError("you must provide a model parameter")
    if body.get("stream"):
        raise ValueError("stream: the emulator does not stream answers")
    if provider == "anthropic" and not _positive(body.get("max_tokens")):
        raise ValueError("max_tokens: must be an integer of at least 1")
    try:
        messages = tuple(_messages(body))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"messages: not understood: {error!r}") from error
    if not any(message.role != "system" for message in messages):
        raise ValueError("messages: at least one message is required")
    return EmulatedRequest(provider=provider, model=model, messages=messages, custom_id=custom_id, body=body)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _messages(body: Json) -> Iterator[Message]:
    for key in ("system", "instructions"):
        for text in _texts(body.get(key) or []):
            yield Message(role="system", content=text)
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages: a list of messages is required")
    for message in messages:
        if message.get("role") not in _ROLES:
            raise ValueError(f"messages: role {message.get('role')} is not allowed")
        for text in _texts(message.get("content") or ""):
            yield Message(role=_ROLES[message["role"]], content=text)


def _texts(content: str | list[Json]) -> list[str]:
    """The texts of a content: itself, or one a block (a tool result's are nested)."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for block in content:
        texts += [block["text"]] if "text" in block else _texts(block.get("content") or [])
    return texts
