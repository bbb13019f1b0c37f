"""Rendering: the small model's turn in the client's own format, streamed or whole."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace

from r2v.serve.request import ClientRequest
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import WireReply


def rendered(request: ClientRequest, said: WireReply) -> tuple[str, Iterable[bytes]]:
    """Return the content type and the body of a reply, in pieces. The reply names the model that the client named."""
    reply, created = replace(said, model=request.body.model), int(time.time())
    if request.body.streams:
        return "text/event-stream", _stream(request, reply, created)
    if request.wire == "messages":
        body = anthropic.write_reply(reply)
    elif request.wire == "responses":
        body = responses.write_reply(reply, created)
    else:
        body = chat.write_reply(reply, created)
    return "application/json", [json.dumps(body, ensure_ascii=False).encode(errors="replace")]


def _stream(request: ClientRequest, reply: WireReply, created: int) -> Iterable[bytes]:
    if request.wire == "messages":
        return anthropic.write_stream(reply)
    if request.wire == "responses":
        return responses.write_stream(reply, created)
    return chat.write_stream(reply, created, with_usage=request.body.asks_usage)
