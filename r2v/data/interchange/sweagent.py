"""SWE-agent `.traj` files: one run of an agent on an issue, with its history of messages.

The history has the model's input and output; without it, `trajectory` is used, with commands and their output.
Demonstrations and messages of other agents (a summariser's) are omitted. A submitted patch need not be correct, so no
outcome is claimed.
"""

from __future__ import annotations

from typing import Any

from r2v.data.episode import Tokens
from r2v.data.interchange.content import read_messages
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, amount, claimed_outcome, first_text, require
from r2v.wire.message import mapping


def is_sweagent(record: Any) -> bool:
    """True if a record looks like a trajectory of SWE-agent."""
    if not isinstance(record, dict) or "messages" in record:
        return False
    history = record.get("history")
    return isinstance(record.get("trajectory"), list) or (isinstance(history, list) and "schema_version" not in record)


def from_sweagent(record: Any) -> Conversation:
    """Return a record as a conversation. Raise BadRecord for other records."""
    fields = require(record, dict, "the record")
    info = mapping(fields.get("info"))
    stats = mapping(info.get("model_stats"))
    history = [
        message for message in require(fields.get("history") or [], list, "history") if not _is_demonstration(message)
    ]
    acting = next((m.get("agent") for m in history if isinstance(m, dict) and m.get("role") == "assistant"), None)
    messages = [m for m in history if not isinstance(m, dict) or m.get("agent", acting) == acting]
    if not any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages):
        problem = first_text(fields, ("problem_statement",)) or ""
        messages = _of_steps(require(fields.get("trajectory"), list, "trajectory"), problem)
    return Conversation(
        messages=read_messages(list(map(_named, messages))),
        task_id=first_text(fields, ("instance_id",)),
        model=first_text(fields, ("model", "model_name")),
        outcome=claimed_outcome({**info, **fields}),
        cost=amount(stats.get("instance_cost")),
        tokens=Tokens(llm_in=int(amount(stats.get("tokens_sent"))), llm_out=int(amount(stats.get("tokens_received")))),
    )


def _is_demonstration(message: Any) -> bool:
    return isinstance(message, dict) and bool(message.get("is_demo") or message.get("message_type") == "demonstration")


def _named(message: Any) -> Any:
    """Return a message with the id of its call as Chat Completions has it; SWE-agent lists the ids."""
    ids = message.get("tool_call_ids") if isinstance(message, dict) else None
    return {"tool_call_id": ids[0]} | message if isinstance(ids, list) and ids else message


def _of_steps(steps: list[Any], goal: str) -> list[dict[str, Any]]:
    """Return messages of steps: the model's response, or its thought and action, and the observation."""
    messages = [{"role": "user", "content": goal}]
    for number, step in enumerate(steps):
        where = f"trajectory[{number}]"
        reply = require(step, dict, where).get("response") or "\n".join(
            part for part in (step.get("thought"), step.get("action")) if isinstance(part, str) and part.strip()
        )
        if not require(reply, str, f"{where}: response").strip():
            raise BadRecord(f"{where}: neither response nor action")
        seen = require(step.get("observation") or "", str, f"{where}: observation")
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": seen}]
    return messages
