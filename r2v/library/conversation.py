"""Conversations passed to the library: messages and tools as objects, or as dictionaries of Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from r2v.errors import UsageError
from r2v.serve.request import ClientRequest
from r2v.serve.transport.body import RequestBody
from r2v.wire import chat
from r2v.wire.message import Message, ToolSpec

KEY_NAME = "library"
"""Key name under which the library's requests are booked."""


def chat_request(
    messages: Sequence[Message | Mapping[str, Any]], tools: Sequence[ToolSpec | Mapping[str, Any]] = ()
) -> ClientRequest:
    """Return the request that a server's client would send. Raises UsageError for an empty or invalid conversation."""
    if not messages:
        raise UsageError("messages: empty; a conversation begins with the user's goal")
    try:
        written = [chat.write_message(turn) if isinstance(turn, Message) else _plain(turn) for turn in messages]
        values: dict[str, Any] = {"model": "", "messages": written}
        if tools:
            values["tools"] = [chat.write_tool(tool) if isinstance(tool, ToolSpec) else _plain(tool) for tool in tools]
        request = ClientRequest(wire="chat", query="", headers=[], body=RequestBody.of(values), key_name=KEY_NAME)
        _ = request.parsed  # read now, because an unreadable conversation is the caller's error
    except (chat.NotThisFormat, TypeError, ValueError) as error:
        raise UsageError(f"messages or tools: not as Chat Completions writes them ({error})") from None
    return request


def _plain(value: Any) -> dict[str, Any]:
    """Return a message or tool given as a dictionary. Raises TypeError for another type."""
    if not isinstance(value, Mapping):
        raise TypeError(f"each is a dictionary or a Message or ToolSpec, got {value!r:.40}")
    return dict(value)
