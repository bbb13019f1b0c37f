"""A prompt and its completion, each text or messages: TRL's data sets, and the rollouts of verifiers.

{"prompt": [{"role": "user", ...}], "completion": [{"role": "assistant", ...}, ...], "reward": 1.0, "info": {...}}
"""

from __future__ import annotations

from typing import Any, Literal

from r2v.data.interchange.content import read_messages
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import object_of, parsed, require
from r2v.data.interchange.messages import about_of


def is_completion(record: Any) -> bool:
    """True if a record looks like a prompt and its completion."""
    return isinstance(record, dict) and "prompt" in record and "completion" in record


def from_completion(record: Any) -> Conversation:
    """Return a record as a conversation. Raises BadRecord."""
    about = require(record, dict, "the record")
    listed = [*_messages(about.get("prompt"), "user"), *_messages(about.get("completion"), "assistant")]
    more = object_of(about.get("info"))
    tools = about.get("tools") or about.get("tool_defs") or more.get("oai_tools")
    return Conversation(messages=read_messages(listed), **about_of({**about, "tools": tools}))


def _messages(value: Any, role: Literal["user", "assistant"]) -> list[Any]:
    if isinstance(value, str) and not value.lstrip().startswith('[{"'):
        return [{"role": role, "content": value}]
    name = "prompt" if role == "user" else "completion"
    return list(require(parsed(value, name), list, name))
