"""The three formats for tests: a request of each, and replies with a known usage, whole and as streams."""

from __future__ import annotations

import json
from typing import Any

from r2v.serve.transport.endpoints import PATHS
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import TokenUsage, WireReply
from r2v.wire.message import Message, TextPart
from r2v.wire.stream_facts import WireName

WIRES = tuple(PATHS)
USAGE = TokenUsage(input=100, output=20)
USD = (100 * 1 + 20 * 4) / 1e6
"""Price of a reply with this usage, at the prices of `stub.served`."""


def wire_reply(text: str = "Hello.", usage: TokenUsage | None = USAGE, model: str = "big-1") -> WireReply:
    """Return a reply that is text."""
    content = (TextPart(text=text),)
    return WireReply(message=Message(role="assistant", content=content), usage=usage, id="id_1", model=model)


def body(wire: WireName, *, stream: bool = False, model: str = "llm", **more: Any) -> dict[str, Any]:
    """Return a request of one turn."""
    turn = [{"role": "user", "content": "Say hello."}]
    conversation: dict[str, Any] = {"input": turn} if wire == "responses" else {"messages": turn}
    limit = {"max_output_tokens" if wire == "responses" else "max_tokens": 50}
    return {"model": model, **conversation, **limit, **({"stream": True} if stream else {}), **more}


def whole(wire: WireName, reply: WireReply | None = None) -> bytes:
    """Return the body of a reply."""
    reply = reply or wire_reply()
    if wire == "messages":
        written = anthropic.write_reply(reply)
    else:
        written = responses.write_reply(reply, 0) if wire == "responses" else chat.write_reply(reply, 0)
    return json.dumps(written, ensure_ascii=False).encode()


def events(wire: WireName, reply: WireReply | None = None) -> list[bytes]:
    """Return the events of a reply, usage included."""
    reply = reply or wire_reply()
    if wire == "messages":
        return list(anthropic.write_stream(reply))
    if wire == "responses":
        return list(responses.write_stream(reply, 0))
    return list(chat.write_stream(reply, 0, with_usage=True))
