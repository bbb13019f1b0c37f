"""Answer bodies: what a model says, after its thoughts and its limits, in the format of each endpoint.

A model that thinks spends tokens before it says anything: they are billed, and they count against the request's limit,
so a small limit may leave no room for a text. A text that is an action becomes a native tool call where the request
brings tools, and is put into the object that a schema asks for.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from r2v.emulator.answers import Answer, EmulatedRequest
from r2v.emulator.models import thoughts
from r2v.emulator.prompt_cache import CachedTokens
from r2v.llm.scripted import count_tokens

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class EmulatedCompletion:
    """A model's answer, before it is put into a provider's format."""

    request: EmulatedRequest
    texts: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    """Of texts and thoughts."""
    thoughts: int = 0
    cut: bool = False
    context_full: bool = False
    """It is cut where the context ended, not at max_tokens."""
    refused: bool = False
    cached: int = 0
    written: int = 0
    """Tokens put into the prompt cache."""
    written_1h: int = 0
    """Of these, for an hour."""
    shows_usage: bool = True

    @property
    def call(self) -> tuple[str, Json] | None:
        """The tool call in the first text, as (name, arguments), where the request brings tools."""
        action = _action(self.texts[0]) if self.request.body.get("tools") and self.texts else None
        if action is None:
            return None
        return str(action["tool"]), {name: value for name, value in action.items() if name != "tool"}


def _action(text: str) -> Json | None:
    try:
        action = json.loads(text)
    except ValueError:
        return None
    return action if isinstance(action, dict) and "tool" in action else None


def _held_to_schema(body: Json) -> bool:
    formats = (
        body.get("response_format"),
        (body.get("text") or {}).get("format"),
        (body.get("output_config") or {}).get("format"),
    )
    return any((one or {}).get("type") == "json_schema" for one in formats)


def complete(
    request: EmulatedRequest,
    answer: Answer,
    faults: frozenset[str],
    cached: CachedTokens,
    count: Callable[[str], int] = count_tokens,
) -> EmulatedCompletion:
    """Call the answer function, and apply thoughts, the limit on tokens and the answer faults. cached: what of the
    prompt is read from the prompt cache, and written to it; count: prompt tokens of a text. Raises LookupError where
    the answer function does not take the request."""
    body = request.body
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
    thought = thoughts(request.provider, request.model, body)
    thought = min(thought, limit) if limit else thought
    texts, cut = [], False
    for draw in range(body.get("n") or 1):
        text: str | None = ""
        if not faults & {"refusal", "no_text"}:
            text = answer(replace(request, draw=draw) if draw else request)
        if text is None:
            raise LookupError("no answer function takes this request; name another one with --answer")
        if _held_to_schema(body) and (action := _action(text)) is not None:
            text = json.dumps({"action": action}, ensure_ascii=False)
        if "u2028" in faults:
            text += "\u2028\u0085"
        length = count_tokens(text)
        is_halved = bool(faults & {"max_tokens", "context_full"})
        allowed = length // 2 if is_halved else limit - thought if limit else length
        texts.append(text if length <= allowed else _first_tokens(text, allowed))
        cut = cut or length > allowed or is_halved
    return EmulatedCompletion(
        request=request,
        texts=tuple(texts),
        tokens_in=sum(count(message.text) for message in request.messages),
        tokens_out=thought + sum(map(count_tokens, texts)),
        thoughts=thought,
        cut=cut,
        context_full="context_full" in faults,
        refused="refusal" in faults,
        cached=cached.read,
        written=cached.written,
        written_1h=cached.written_1h,
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
    called = completion.call
    reason = "content_filter" if completion.refused else "length" if completion.cut else "stop"
    usage = {
        "prompt_tokens": completion.tokens_in,
        "completion_tokens": completion.tokens_out,
        "total_tokens": completion.tokens_in + completion.tokens_out,
        "prompt_tokens_details": {"cached_tokens": completion.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": completion.thoughts, "audio_tokens": 0},
    }
    choices: list[Json] = [
        {
            "index": index,
            "logprobs": None,
            "finish_reason": "tool_calls" if called and not completion.cut else reason,
            "message": {
                "role": "assistant",
                "content": None if completion.refused or called else text,
                "annotations": [],
                "refusal": "I can't help with that." if completion.refused else None,
            }
            | ({"tool_calls": [_tool_call(name, *called)]} if called else {}),
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


def _tool_call(name: str, tool: str, arguments: Json) -> Json:
    function = {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{name}", "type": "function", "function": function}


def _response(completion: EmulatedCompletion, name: str, now: float) -> Json:
    usage = {
        "input_tokens": completion.tokens_in,
        "input_tokens_details": {"cached_tokens": completion.cached, "cache_write_tokens": 0},
        "output_tokens": completion.tokens_out,
        "output_tokens_details": {"reasoning_tokens": completion.thoughts},
        "total_tokens": completion.tokens_in + completion.tokens_out,
    }
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
        "output": _output_items(completion, name),
    } | ({"usage": usage} if completion.shows_usage else {})


def _output_items(completion: EmulatedCompletion, name: str) -> list[Json]:
    items: list[Json] = [{"id": f"rs_{name}", "type": "reasoning", "summary": []}] if completion.thoughts else []
    if completion.call is not None and not completion.refused:
        tool, arguments = completion.call
        text = json.dumps(arguments, ensure_ascii=False)
        call = {"id": f"fc_{name}", "type": "function_call", "call_id": f"call_{name}", "status": "completed"}
        return [*items, call | {"name": tool, "arguments": text}]
    if completion.cut and not completion.texts[0]:
        return items
    part = (
        {"type": "refusal", "refusal": "I can't help with that."}
        if completion.refused
        else {"type": "output_text", "text": completion.texts[0], "annotations": []}
    )
    message = {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return [*items, message]


def _message(completion: EmulatedCompletion, name: str) -> Json:
    called = completion.call
    limit = "model_context_window_exceeded" if completion.context_full else "max_tokens"
    reason = "refusal" if completion.refused else limit if completion.cut else "tool_use" if called else "end_turn"
    usage = {
        "input_tokens": completion.tokens_in - completion.cached - completion.written,
        "output_tokens": completion.tokens_out,
        "cache_read_input_tokens": completion.cached,
        "cache_creation_input_tokens": completion.written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": completion.written - completion.written_1h,
            "ephemeral_1h_input_tokens": completion.written_1h,
        },
    }
    blocks: list[Json] = [{"type": "thinking", "thinking": "", "signature": name}] if completion.thoughts else []
    if called:
        blocks.append({"type": "tool_use", "id": f"toolu_{name}", "name": called[0], "input": called[1]})
    elif completion.texts[0] or not completion.thoughts:
        blocks.append({"type": "text", "text": completion.texts[0]})
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": completion.request.model,
        "content": [] if completion.refused else blocks,
        "stop_reason": reason,
        "stop_sequence": None,
    } | ({"usage": usage} if completion.shows_usage else {})
