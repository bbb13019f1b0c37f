"""Chat messages of fine-tuning files, hub data sets and saved requests: one conversation per record.

    {"messages": [{"role": "system", ...}, {"role": "user", ...}, {"role": "assistant", ...}, ...],
     "tools": [...], "instance_id": ..., "resolved": true}

The format is OpenAI's, or Claude's with content blocks and a top-level `system`. `messages` and `tools` may be JSON in
a string, as in parquet files. A record may also be the list of messages itself.
"""

from __future__ import annotations

from typing import Any

from r2v.data.interchange.content import read_messages, text_of, write_message
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import claimed_outcome, first_text, parsed, require
from r2v.data.tools import chat_tools
from r2v.wire.message import Message, mapping

_OURS = "r2v"
"""Field of a record written by R2V: the goal, if an environment's first page follows it, and the indices of copied
messages."""


def is_messages(record: Any) -> bool:
    """True if a record looks like chat messages."""
    if isinstance(record, dict):
        return "messages" in record
    return isinstance(record, list) and bool(record) and isinstance(record[0], dict) and "role" in record[0]


def from_messages(record: Any) -> Conversation:
    """Return a record as a conversation. Raise BadRecord for other records."""
    about = record if isinstance(record, dict) else {"messages": record}
    messages = read_messages(require(parsed(about.get("messages"), "messages"), list, "messages"))
    ours = mapping(about.get(_OURS))
    copied = ours.get("copied")
    return Conversation(
        messages=(*system_of(about.get("system")), *_parted(messages, ours.get("goal"))),
        copied=frozenset(copied if isinstance(copied, list) else ()),
        **about_of(about),
    )


def about_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation's fields, other than messages, that most formats share."""
    tools = parsed(record.get("tools") or record.get("functions"), "tools") or []
    return {
        "tools": chat_tools(require(tool, dict, "a tool") for tool in require(tools, list, "tools")),
        "task_id": first_text(record, ("task_id", "instance_id", "example_id")),
        "model": first_text(record, ("model", "model_name")),
        "outcome": claimed_outcome(record),
    }


def system_of(content: Any) -> tuple[Message, ...]:
    """Return a separate system prompt, text or blocks, as a message; none if it is empty."""
    return (Message(role="system", content=text_of(content, "system")),) if content else ()


def _parted(messages: tuple[Message, ...], goal: Any) -> tuple[Message, ...]:
    """Return the messages with an environment's first page split from the goal, the beginning of the user's first."""
    at = next((index for index, message in enumerate(messages) if message.role == "user"), None)
    if at is None or not isinstance(goal, str) or not messages[at].text.startswith(f"{goal}\n\n"):
        return messages
    page = messages[at].text[len(goal) + 2 :]
    both = (Message(role="user", content=goal), Message(role="user", content=page))
    return (*messages[:at], *both, *messages[at + 1 :])


def to_messages(talk: Conversation, about: dict[str, Any], *, joined: bool) -> dict[str, Any]:
    """Return a conversation as a record, with `about` under the field `r2v`. `joined`: append an environment's first
    page to the user's first message, for templates that require user and assistant to alternate."""
    messages, goal = list(talk.messages), talk.opening
    if joined and goal is not None and goal + 1 < len(messages) and messages[goal + 1].role == "user":
        page = messages.pop(goal + 1)
        messages[goal] = Message(role="user", content="\n\n".join([talk.goal, page.text]))
        about = {**about, "goal": talk.goal}
    if talk.copied:
        about = {**about, "copied": sorted(talk.copied)}
    named = (("task_id", talk.task_id), ("model", talk.model), ("success", talk.outcome))
    record: dict[str, Any] = {name: value for name, value in named if value is not None}
    tools = {"tools": list(talk.tools)} if talk.tools else {}
    return record | {"messages": list(map(write_message, messages)), **tools, _OURS: about}
