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
    cache: CachedTokens = CachedTokens()
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
    request: EmulatedRequest, answer: Answer, faults: frozenset[str], cache: CachedTokens, count: Callable[[str], int]
) -> EmulatedCompletion:
    """Call the answer function, and apply thoughts, the token limit and the answer faults. cache: prompt tokens read
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
        cache=cache,
        shows_usage="usage_missing" not in faults,
    )


def _first_tokens(text: str, count: int) -> str:
    shorter = range(len(text) + 1)
    return text[: bisect_right(shorter, count, key=lambda end: count_tokens(text[:end])) - 1].rstrip()


def answer_body(completion: EmulatedCompletion, path: str, now: float) -> Json:
    """Return the answer in this endpoint's format, with the bill's token counts as its usage."""
    replies = [_reply(completion, path, text) for text in completion.texts]
    if path.endswith("/messages"):
        return anthropic.write_reply(replies[0])
    if path.endswith("/responses"):
        body, details = responses.write_reply(replies[0], int(now)), "output_tokens_details"
    else:
        body, details = chat.write_reply(replies[0], int(now)), "completion_tokens_details"
        others = (chat.write_reply(reply, int(now))["choices"][0] for reply in replies[1:])
        body["choices"] += [{**choice, "index": index} for index, choice in enumerate(others, start=1)]
    if completion.shows_usage:
        body["usage"][details] = {"reasoning_tokens": completion.thoughts}
    return body


def answer_stream(completion: EmulatedCompletion, path: str, now: float) -> Iterator[bytes]:
    """Return the answer as a stream of server-sent events."""
    reply = _reply(completion, path, completion.texts[0])
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
    usage = TokenUsage(
        input=completion.tokens_in,
        output=completion.tokens_out,
        cached=completion.cache.read,
        write_5m=completion.cache.written - completion.cache.written_1h,
        write_1h=completion.cache.written_1h,
    )
    return WireReply(
        message=Message(role="assistant", content=tuple(parts)),
        finish="length" if completion.cut and finish == "stop" else finish,
        id=f"{prefixes.get(path, 'chatcmpl')}_{name}",
        model=completion.request.model,
        usage=usage if completion.shows_usage else None,
    )
