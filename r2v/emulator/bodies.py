"""Request and response bodies: requests parsed from each provider's JSON, answers and errors in its format."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from r2v.emulator.answers import Answer, EmulatedRequest
from r2v.llm.scripted import count_tokens
from r2v.llm.types import Message, Role

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


def error_body(provider: str, status: int, message: str, *, code: str | None = None, kind: str | None = None) -> Json:
    """The body of an error response. `kind` replaces the type that goes with the status."""
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
            "param": None,
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


@dataclass(frozen=True, kw_only=True)
class EmulatedCompletion:
    """What a model answered, before it is put into a provider's format."""

    request: EmulatedRequest
    texts: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    cut: bool = False
    context_full: bool = False
    """It is cut where the context ended, not at max_tokens."""
    refused: bool = False
    cached: int = 0
    written: int = 0
    """Tokens put into the prompt cache."""
    shows_usage: bool = True


def complete(
    request: EmulatedRequest, answer: Answer, faults: frozenset[str], cached: tuple[int, int]
) -> EmulatedCompletion:
    """Call the answer function, and apply the limit on tokens and the answer faults. cached: tokens (read from, written
    to) the prompt cache."""
    body = request.body
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
    texts, cut = [], False
    for draw in range(body.get("n") or 1):
        text = "" if faults & {"refusal", "no_text"} else answer(replace(request, draw=draw) if draw else request)
        if "u2028" in faults:
            text += "\u2028\u0085"
        length = count_tokens(text)
        is_halved = bool(faults & {"max_tokens", "context_full"})
        allowed = length // 2 if is_halved else limit or length
        texts.append(text if length <= allowed else _first_tokens(text, allowed))
        cut = cut or length > allowed or is_halved
    return EmulatedCompletion(
        request=request,
        texts=tuple(texts),
        tokens_in=request.tokens_in,
        tokens_out=sum(map(count_tokens, texts)),
        cut=cut,
        context_full="context_full" in faults,
        refused="refusal" in faults,
        cached=cached[0],
        written=cached[1],
        shows_usage="usage_missing" not in faults,
    )


def _first_tokens(text: str, count: int) -> str:
    shorter = range(len(text) + 1)
    return text[: bisect_right(shorter, count, key=lambda end: count_tokens(text[:end])) - 1].rstrip()


def answer_body(completion: EmulatedCompletion, path: str, now: float) -> Json:
    """The answer as this endpoint writes it."""
    name = completion.request.sha256[:20]
    if path.endswith("/messages"):
        return _message(completion, name)
    if path.endswith("/responses"):
        return _response(completion, name, now)
    return _completion(completion, name, now)


def _completion(completion: EmulatedCompletion, name: str, now: float) -> Json:
    reason = "content_filter" if completion.refused else "length" if completion.cut else "stop"
    usage = {
        "prompt_tokens": completion.tokens_in,
        "completion_tokens": completion.tokens_out,
        "total_tokens": completion.tokens_in + completion.tokens_out,
        "prompt_tokens_details": {"cached_tokens": completion.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    choices: list[Json] = [
        {
            "index": index,
            "logprobs": None,
            "finish_reason": reason,
            "message": {
                "role": "assistant",
                "content": None if completion.refused else text,
                "annotations": [],
                "refusal": "I can't help with that." if completion.refused else None,
            },
        }
        for index, text in enumerate(completion.texts)
    ]
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(now),
        "choices": choices,
        "model": completion.request.model,
        "system_fingerprint": None,
    } | ({"usage": usage} if completion.shows_usage else {})


def _response(completion: EmulatedCompletion, name: str, now: float) -> Json:
    usage = {
        "input_tokens": completion.tokens_in,
        "input_tokens_details": {"cached_tokens": completion.cached},
        "output_tokens": completion.tokens_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": completion.tokens_in + completion.tokens_out,
    }
    part = (
        {"type": "refusal", "refusal": "I can't help with that."}
        if completion.refused
        else {"type": "output_text", "text": completion.texts[0], "annotations": []}
    )
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(now),
        "model": completion.request.model,
        "status": "incomplete" if completion.cut else "completed",
        "error": None,
        "parallel_tool_calls": True,
        "incomplete_details": {"reason": "max_output_tokens"} if completion.cut else None,
        "instructions": None,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "metadata": {},
        "output": [
            {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        ],
    } | ({"usage": usage} if completion.shows_usage else {})


def _message(completion: EmulatedCompletion, name: str) -> Json:
    limit = "model_context_window_exceeded" if completion.context_full else "max_tokens"
    reason = "refusal" if completion.refused else limit if completion.cut else "end_turn"
    usage = {
        "input_tokens": completion.tokens_in - completion.cached - completion.written,
        "output_tokens": completion.tokens_out,
        "cache_read_input_tokens": completion.cached,
        "cache_creation_input_tokens": completion.written,
    }
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": completion.request.model,
        "content": [] if completion.refused else [{"type": "text", "text": completion.texts[0]}],
        "stop_reason": reason,
        "stop_sequence": None,
    } | ({"usage": usage} if completion.shows_usage else {})
