"""Reading, then writing, gives the same JSON; writing, then reading, gives the same message.

Requests of today's clients, as they send them, are lines of tests/wire/requests.jsonl; their texts are shortened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import TokenUsage, WireReply
from r2v.wire.message import Message, Part, TextPart, ThinkingPart, ToolCall
from r2v.wire.sse import read_events

_FORMATS = {"chat": chat, "responses": responses, "anthropic": anthropic}
_REQUESTS = [
    json.loads(line) for line in (Path(__file__).parent / "requests.jsonl").read_text(encoding="utf-8").splitlines()
]
_EVERY_FORMAT = pytest.mark.parametrize("wire", _FORMATS)


@pytest.mark.parametrize("request_line", [pytest.param(line, id=line["client"]) for line in _REQUESTS])
def test_a_clients_request_is_written_as_it_came(request_line: dict[str, Any]) -> None:
    wire, body = _FORMATS[request_line["wire"]], request_line["body"]
    request = wire.read_request(body)
    assert wire.write_request(request) == body
    assert [function.name for function in request.functions] == request_line["functions"]
    assert request.max_tokens == request_line["max_tokens"]
    assert request.stream == body.get("stream", False)


_WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=2),
    max_leaves=4,
)
_CALLS = st.builds(
    ToolCall,
    name=st.sampled_from(["get", "functions.submit"]),
    arguments=st.dictionaries(_WORDS, _VALUES, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False)),
    id=_WORDS,
)
_THOUGHTS = st.builds(ThinkingPart, text=_WORDS, opaque=st.none() | _WORDS)


@st.composite
def _replies(draw: st.DrawFn) -> WireReply:
    thoughts, texts = (
        draw(st.lists(_THOUGHTS, max_size=1)),
        draw(st.lists(st.builds(TextPart, text=_WORDS), max_size=1)),
    )
    calls = draw(st.lists(_CALLS, max_size=2))
    prompt, cached = draw(st.integers(1, 10**6)), draw(st.integers(0, 10**6))
    usage = TokenUsage(input=prompt, output=draw(st.integers(0, 10**6)), cached=min(cached, prompt))
    return WireReply(
        message=Message(role="assistant", content=(*thoughts, *texts, *calls)),
        finish=draw(st.sampled_from(["stop", "length"])),
        usage=draw(st.none() | st.just(usage)),
        id=draw(_WORDS),
        model=draw(_WORDS),
    )


def _kept(parts: Iterable[Part], wire: str) -> list[tuple[str, ...]]:
    """Return the parts of a message that a format keeps: Chat has no field for the opaque part of a thought."""
    kept = list[tuple[str, ...]]()
    for part in parts:
        match part:
            case ThinkingPart():
                kept.append(("thought", part.text, "" if wire == "chat" else part.opaque or ""))
            case TextPart() if part.text:
                kept.append(("text", part.text))
            case ToolCall():
                kept.append(("call", part.name, part.arguments, part.id))
    return kept


def _written_and_read(reply: WireReply, wire: str) -> tuple[WireReply, WireReply]:
    """Return a reply after its way over the wire, whole and as a stream."""
    if wire == "anthropic":
        return anthropic.read_reply(anthropic.write_reply(reply)), anthropic.read_stream(
            read_events(anthropic.write_stream(reply))
        )
    if wire == "responses":
        return responses.read_reply(responses.write_reply(reply, 0)), responses.read_stream(
            read_events(responses.write_stream(reply, 0))
        )
    return chat.read_reply(chat.write_reply(reply, 0)), chat.read_stream(
        read_events(chat.write_stream(reply, 0, with_usage=True))
    )


@_EVERY_FORMAT
@settings(max_examples=25)
@given(reply=_replies())
def test_a_reply_comes_back_as_it_was_written(wire: str, reply: WireReply) -> None:
    for back in _written_and_read(reply, wire):
        assert _kept(back.message.parts, wire) == _kept(reply.message.parts, wire)
        assert (back.id, back.model, back.finish, back.error) == (reply.id, reply.model, reply.finish, None)
        assert back.usage == reply.usage or reply.usage is None


@_EVERY_FORMAT
def test_a_call_of_a_custom_tool_comes_back_where_the_format_has_one(wire: str) -> None:
    call = ToolCall(name="apply_patch", arguments="*** Begin Patch\n" * 3, id="call_1", custom=True)
    reply = WireReply(message=Message(role="assistant", content=(call,)))
    for back in _written_and_read(reply, wire):
        (read,) = back.message.calls
        assert (read.name, read.id) == (call.name, call.id)
        custom = wire != "anthropic"  # it takes objects alone
        assert read.custom == custom
        assert read.arguments == (call.arguments if custom else json.dumps({"arguments": call.arguments}))


@_EVERY_FORMAT
def test_a_refusal_comes_back(wire: str) -> None:
    module = _FORMATS[wire]
    words = "I can't help with that."
    bodies: dict[str, Any] = {
        "chat": {"choices": [{"message": {"content": None, "refusal": words}, "finish_reason": "stop"}]},
        "responses": {
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": words}]}]
        },
        "anthropic": {"content": [{"type": "text", "text": words}], "stop_reason": "refusal"},
    }
    reply = module.read_reply(bodies[wire])
    for back in _written_and_read(reply, wire):
        assert (back.finish, back.message.text) == ("refusal", words)
