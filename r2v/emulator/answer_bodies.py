"""Answer bodies: a model's answer, subject to thinking and token limits, in the format of each endpoint.

Thinking tokens are billed and count against the request's limit, so a small limit may leave no room for text. A text
that is an action becomes a native tool call if the request has tools, or the object of a requested JSON schema.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from r2v.emulator.answers import Answer, EmulatedRequest
from r2v.emulator.models import thoughts
from r2v.emulator.prompt_cache import CachedTokens
from r2v.emulator.signatures import sign
from r2v.llm.scripted import count_tokens
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import Finish, TokenUsage, WireReply
from r2v.wire.message import Message, Part, RefusalPart, TextPart, ThinkingPart, ToolCall

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class EmulatedCompletion:
    """A model's answer before its conversion to a provider's format."""

    request: EmulatedRequest
    texts: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    """Tokens of texts and thoughts."""
    thoughts: int = 0
    cut: bool = False
    context_full: bool = False
    """True if the context's end cut the answer, not max_tokens."""
    refused: bool = False
    cached: int = 0
    written: int = 0
    """Tokens written to the prompt cache."""
    written_1h: int = 0
    """Of these, for an hour."""
    shows_usage: bool = True

    @property
    def call(self) -> tuple[str, Json] | None:
        """Return the first text's tool call as (name, arguments); None without a call or tools in the request."""
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
    return any((format_ or {}).get("type") == "json_schema" for format_ in formats)


def complete(
    request: EmulatedRequest,
    answer: Answer,
    faults: frozenset[str],
    cached: CachedTokens,
    count: Callable[[str], int] = count_tokens,
) -> EmulatedCompletion:
    """Call the answer function, and apply thoughts, the token limit and the answer faults. cached: prompt tokens read
    from and written to the prompt cache; count: prompt tokens of a text. Raises LookupError if the answer function does
    not accept the request."""
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
            raise LookupError("no answer function accepts this request; name another one with --answer")
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
    """Return the answer in this endpoint's format, with the bill's token counts as its usage."""
    replies = [_reply(completion, path, text) for text in completion.texts]
    if path.endswith("/messages"):
        body, usage = anthropic.write_reply(replies[0]), _message_usage(completion)
    elif path.endswith("/responses"):
        body, usage = responses.write_reply(replies[0], int(now)), _response_usage(completion)
    else:
        body, usage = chat.write_reply(replies[0], int(now)), _chat_usage(completion)
        others = (chat.write_reply(reply, int(now))["choices"][0] for reply in replies[1:])
        body["choices"] += [{**choice, "index": index} for index, choice in enumerate(others, start=1)]
    return body | ({"usage": usage} if completion.shows_usage else {})


def answer_stream(completion: EmulatedCompletion, path: str, now: float) -> Iterator[bytes]:
    """Return the answer as a stream of server-sent events."""
    usage = TokenUsage(
        input=completion.tokens_in,
        output=completion.tokens_out,
        cached=completion.cached,
        write_5m=completion.written - completion.written_1h,
        write_1h=completion.written_1h,
    )
    reply = _reply(completion, path, completion.texts[0])
    reply = replace(reply, usage=usage if completion.shows_usage else None)
    if path.endswith("/messages"):
        return anthropic.write_stream(reply)
    if path.endswith("/responses"):
        return responses.write_stream(reply, int(now))
    with_usage = (completion.request.body.get("stream_options") or {}).get("include_usage")
    return chat.write_stream(reply, int(now), with_usage=bool(with_usage))


def _reply(completion: EmulatedCompletion, path: str, text: str) -> WireReply:
    name = completion.request.sha256[:20]
    called = completion.call
    signature = sign(completion.request.model, name)
    parts: list[Part] = [ThinkingPart(opaque=signature)] if completion.thoughts else []
    if completion.refused:
        parts.append(RefusalPart(text="I can't help with that."))
    elif called is not None:
        prefix = "toolu" if path.endswith("/messages") else "call"
        arguments = json.dumps(called[1], ensure_ascii=False)
        parts.append(ToolCall(name=called[0], arguments=arguments, id=f"{prefix}_{name}"))
    elif text or not (completion.thoughts and completion.cut):
        parts.append(TextPart(text=text))
    finish: Finish = "refusal" if completion.refused else "context" if completion.context_full else "stop"
    prefixes = {"/v1/messages": "msg", "/v1/responses": "resp"}
    return WireReply(
        message=Message(role="assistant", content=tuple(parts)),
        finish="length" if completion.cut and finish == "stop" else finish,
        id=f"{prefixes.get(path, 'chatcmpl')}_{name}",
        model=completion.request.model,
    )


def _chat_usage(completion: EmulatedCompletion) -> Json:
    return {
        "prompt_tokens": completion.tokens_in,
        "completion_tokens": completion.tokens_out,
        "total_tokens": completion.tokens_in + completion.tokens_out,
        "prompt_tokens_details": {"cached_tokens": completion.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": completion.thoughts, "audio_tokens": 0},
    }


def _response_usage(completion: EmulatedCompletion) -> Json:
    return {
        "input_tokens": completion.tokens_in,
        "input_tokens_details": {"cached_tokens": completion.cached, "cache_write_tokens": 0},
        "output_tokens": completion.tokens_out,
        "output_tokens_details": {"reasoning_tokens": completion.thoughts},
        "total_tokens": completion.tokens_in + completion.tokens_out,
    }


def _message_usage(completion: EmulatedCompletion) -> Json:
    return {
        "input_tokens": completion.tokens_in - completion.cached - completion.written,
        "output_tokens": completion.tokens_out,
        "cache_read_input_tokens": completion.cached,
        "cache_creation_input_tokens": completion.written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": completion.written - completion.written_1h,
            "ephemeral_1h_input_tokens": completion.written_1h,
        },
    }
