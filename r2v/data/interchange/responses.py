"""OpenAI Responses: lists of items, alone or as the input and output of a request.

{"instructions": "...", "input": [{"role": "user", ...}], "output": [{"type": "reasoning", ...}, ...], "tools": [...]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from r2v.data.interchange.content import Placed, as_read, joined, normal
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import parsed, require
from r2v.data.interchange.messages import about_of, system_of
from r2v.data.tools import chat_tools
from r2v.wire import responses
from r2v.wire.message import Message, ToolCall, mapping

_ADDED_TOOLS = "additional_tools"
_SKIPPED = (_ADDED_TOOLS, "ghost_snapshot", "compaction", "compaction_trigger", "context_compaction")
"""Types of items without content for a policy: tools, marks of a client, encrypted digests of earlier items."""


def is_items(value: Any) -> bool:
    """True if a value is a list of items, at least one of them no message."""
    return isinstance(value, list) and any(isinstance(v, dict) and "type" in v and "role" not in v for v in value)


def is_responses(record: Any) -> bool:
    """True if a record looks like items, or like a request of items and its reply."""
    if not isinstance(record, dict):
        return is_items(record)
    return "messages" not in record and (
        isinstance(record.get("output"), list) or isinstance(record.get("input"), list)
    )


def from_responses(record: Any) -> Conversation:
    """Return a record as a conversation. Raise BadRecord for other records."""
    about = record if isinstance(record, dict) else {"input": record}
    given = about.get("input") or []
    given = [{"role": "user", "content": given}] if isinstance(given, str) else require(given, list, "input")
    items = [*given, *require(parsed(about.get("output"), "output") or [], list, "output")]
    fields = about_of(about)
    for item in map(mapping, items):
        if item.get("type") == _ADDED_TOOLS:
            tools = require(item.get("tools") or [], list, f"{_ADDED_TOOLS}: tools")
            fields["tools"] += chat_tools(tool for tool in tools if isinstance(tool, dict))
    placed = ((f"item {number}", item) for number, item in enumerate(items))
    return Conversation(messages=(*system_of(about.get("instructions")), *read_items(placed)), **fields)


def read_items(items: Iterable[tuple[str, Any]]) -> tuple[Message, ...]:
    """Return the messages of (location, item) pairs; consecutive thoughts, texts and calls of an assistant are one
    message. Raise BadRecord for an unknown item."""
    return normal(joined(message for where, item in items for message in _read(where, item)))


def _read(where: str, item: Any) -> Iterable[Placed]:
    kind = require(item, dict, where).get("type")
    if kind in _SKIPPED:
        return
    if kind == "local_shell_call":  # shell of Codex' first models, with the output of any call
        action = json.dumps(item.get("action") or {}, ensure_ascii=False)
        call = ToolCall(name="local_shell", arguments=action, id=str(item.get("call_id") or item.get("id") or ""))
        yield where, Message(role="assistant", content=(call,))
        return
    yield where, as_read(responses.read_item, item, where)
