"""ShareGPT: turns with `from` and `value`, as LLaMA-Factory and many hub data sets write them.

    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], "system": "...",
     "tools": "[...]"}

A tool is called by a turn of its own, whose value is JSON with a name and arguments, or by text that the policy
learns as it stands.
"""

from __future__ import annotations

from typing import Any

from r2v.data.interchange.content import read_messages
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, parsed, require
from r2v.data.interchange.messages import about_of, system_of
from r2v.wire import chat

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}


def is_sharegpt(record: Any) -> bool:
    """True if a record looks like ShareGPT's."""
    return isinstance(record, dict) and isinstance(record.get("conversations"), (list, str))


def from_sharegpt(record: Any) -> Conversation:
    """Return a record as a conversation. Raises BadRecord."""
    about = require(record, dict, "the record")
    turns = require(parsed(about.get("conversations"), "conversations"), list, "conversations")
    listed = [_message(turn, f"message {number}") for number, turn in enumerate(turns)]
    return Conversation(messages=(*system_of(about.get("system")), *read_messages(listed)), **about_of(about))


def _message(turn: Any, where: str) -> dict[str, Any]:
    fields = require(turn, dict, where)
    if "role" in fields:  # turns of OpenAI's under ShareGPT's name
        return fields
    role, value = fields.get("from"), require(fields.get("value"), str, f"{where}: value")
    if role == chat.OLDEST_CALL:
        calls = parsed(value, f"{where}: value")
        return {"role": "assistant", chat.CALLS: calls if isinstance(calls, list) else [calls]}
    if role not in _ROLES:
        allowed = ", ".join([*_ROLES, chat.OLDEST_CALL])
        raise BadRecord(f"{where}: from {role!r:.40}; allowed: {allowed}")
    return {"role": _ROLES[role], "content": value}
