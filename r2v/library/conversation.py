"""Conversations of a user of the library: messages and tools as objects, or as Chat Completions writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from r2v.errors import UsageError
from r2v.serve.request import ClientRequest
from r2v.serve.transport.body import RequestBody
from r2v.wire import chat
from r2v.wire.message import Message, ToolSpec

KEY_NAME = "library"
"""The name under which the library's own requests are booked."""


def chat_request(
    messages: Sequence[Message | Mapping[str, Any]], tools: Sequence[ToolSpec | Mapping[str, Any]] = ()
) -> ClientRequest:
    """Return a request as the server would read it of a client. Raises UsageError for what is no conversation."""
    if not messages:
        raise UsageError("messages: empty; a conversation begins with the user's goal")
    try:
        written = [chat.write_message(one) if isinstance(one, Message) else _plain(one) for one in messages]
        values: dict[str, Any] = {"model": "", "messages": written}
        if tools:
            values["tools"] = [chat.write_tool(tool) if isinstance(tool, ToolSpec) else _plain(tool) for tool in tools]
        request = ClientRequest(wire="chat", query="", headers=[], body=RequestBody.of(values), key_name=KEY_NAME)
        _ = request.parsed  # read now: what cannot be read is the caller's error
    except (chat.NotThisFormat, TypeError, ValueError) as error:
        raise UsageError(f"messages or tools: not as Chat Completions writes them ({error})") from None
    return request


def _plain(given: Any) -> dict[str, Any]:
    """A message or tool that is no object of R2V's. Raises TypeError for what is no dictionary."""
    if not isinstance(given, Mapping):
        raise TypeError(f"each is a dictionary or a Message or ToolSpec, got {given!r:.40}")
    return dict(given)
