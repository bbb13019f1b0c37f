"""Rows with messages under other names: ShareGPT, prompt and completion, tau-bench's results.

    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], "tools": "[...]"}
    {"prompt": [{"role": "user", ...}], "completion": [{"role": "assistant", ...}, ...], "reward": 1.0, "info": {...}}
    {"traj": [{"role": "user", ...}, {"role": "assistant", ...}], "reward": 1.0, "task_id": 3}

Prompt and completion, each text or messages, are the format of TRL, and with a reward that of verifiers.
"""

from __future__ import annotations

from typing import Any, Literal

from r2v.data.interchange.content import read_messages
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, parsed, require
from r2v.data.interchange.messages import about_of, system_of
from r2v.wire import chat
from r2v.wire.message import mapping

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant"), "assistant"),
    **dict.fromkeys(("observation", "tool", "function_response"), "tool"),
    "system": "system",
}


def from_tau_bench(record: Any) -> Conversation:
    """Return a result of tau-bench as a conversation. Raise BadRecord for other records."""
    about = require(record, dict, "the record")
    return Conversation(messages=read_messages(require(about.get("traj"), list, "traj")), **about_of(about))


def from_completion(record: Any) -> Conversation:
    """Return a prompt and its completion as a conversation. Raise BadRecord for other records."""
    about = require(record, dict, "the record")
    listed = [*_messages(about.get("prompt"), "user"), *_messages(about.get("completion"), "assistant")]
    tools = about.get("tools") or about.get("tool_defs") or mapping(about.get("info")).get("oai_tools")
    return Conversation(messages=read_messages(listed), **about_of({**about, "tools": tools}))


def _messages(value: Any, role: Literal["user", "assistant"]) -> list[Any]:
    if isinstance(value, str) and not value.lstrip().startswith('[{"'):
        return [{"role": role, "content": value}]
    name = "prompt" if role == "user" else "completion"
    return list(require(parsed(value, name), list, name))


def from_sharegpt(record: Any) -> Conversation:
    """Return a row in ShareGPT's form as a conversation. Raise BadRecord for other records."""
    about = require(record, dict, "the record")
    turns = require(parsed(about.get("conversations"), "conversations"), list, "conversations")
    listed = [_turn(turn, f"message {number}") for number, turn in enumerate(turns)]
    return Conversation(messages=(*system_of(about.get("system")), *read_messages(listed)), **about_of(about))


def _turn(turn: Any, where: str) -> dict[str, Any]:
    """Return a turn as a message. A call is a separate turn, or text that the policy is trained on unchanged."""
    fields = require(turn, dict, where)
    if "role" in fields:  # OpenAI's messages under ShareGPT's name
        return dict(fields)
    role, value = fields.get("from"), require(fields.get("value"), str, f"{where}: value")
    if role == chat.OLDEST_CALL:
        calls = parsed(value, f"{where}: value")
        return {"role": "assistant", chat.CALLS: calls if isinstance(calls, list) else [calls]}
    if not isinstance(role, str) or role not in _ROLES:
        allowed = ", ".join([*_ROLES, chat.OLDEST_CALL])
        raise BadRecord(f"{where}: from {role!r:.40}; allowed: {allowed}")
    return {"role": _ROLES[role], "content": value}
