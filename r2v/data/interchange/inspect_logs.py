"""Inspect logs, sample by sample: messages of OpenAI's roles, with inspect's own calls, thoughts and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from r2v.data.episode import Tokens
from r2v.data.interchange.content import read_messages
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, amount, common_outcome, first_text, outcome_of, require
from r2v.data.tools import chat_tools
from r2v.wire import chat
from r2v.wire.message import mapping

_ATTACHED = "attachment://"


def is_inspect_log(value: Any) -> bool:
    """True if a value looks like an inspect log or its head."""
    return isinstance(value, dict) and isinstance(value.get("eval"), dict) and "version" in value


def samples_of(value: dict[str, Any]) -> Iterator[Any]:
    """Yield the samples of a log, each with the head's `eval`."""
    samples = value.get("samples")
    if not isinstance(samples, list) or not samples:
        yield BadRecord("a log of inspect without samples")
        return
    for sample in samples:
        yield {**sample, "eval": value["eval"]} if isinstance(sample, dict) else sample


def from_inspect(record: Any) -> Conversation:
    """Return a sample as a conversation, with an outcome if its scores agree. Raise BadRecord for other records."""
    about = require(record, dict, "the record")
    held = mapping(about.get("attachments"))
    listed = _attached(require(about.get("messages"), list, "messages"), held)
    events = map(mapping, require(about.get("events") or [], list, "events"))
    offered = (event["tools"] for event in events if event.get("event") == "model" and event.get("tools"))
    tools = require(_attached(next(offered, []), held), list, "tools")
    scores = mapping(about.get("scores"))
    used = [mapping(usage) for usage in mapping(about.get("model_usage")).values()]
    return Conversation(
        messages=read_messages([_message(value, f"message {n}") for n, value in enumerate(listed)]),
        tools=chat_tools(tool for tool in tools if isinstance(tool, dict)),
        task_id=first_text(about, ("id",)),
        model=first_text(mapping(about.get("eval")), ("model",)),
        outcome=common_outcome(outcome_of(mapping(score).get("value"), name) for name, score in scores.items()),
        tokens=Tokens(
            llm_in=int(sum(amount(usage.get("input_tokens")) for usage in used)),
            llm_out=int(sum(amount(usage.get("output_tokens")) for usage in used)),
        ),
    )


def _attached(value: Any, held: Mapping[str, Any]) -> Any:
    """Return a value with references to the log's attachments replaced by their texts."""
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return held.get(value.removeprefix(_ATTACHED), value)
    if isinstance(value, dict):
        return {name: _attached(item, held) for name, item in value.items()}
    return [_attached(item, held) for item in value] if isinstance(value, list) else value


def _message(value: Any, where: str) -> dict[str, Any]:
    """Return a message in OpenAI's form: inspect has a call's tool name as `function`, and its own kind of thoughts."""
    fields = dict(require(value, dict, where))
    if isinstance(calls := fields.get(chat.CALLS), list):
        fields[chat.CALLS] = [
            {"id": call.get("id"), "function": {"name": call.get("function"), "arguments": call.get("arguments")}}
            for call in calls
            if isinstance(call, dict)
        ]
    if isinstance(parts := fields.get("content"), list):
        fields["content"] = [_part(part, where) if isinstance(part, dict) else part for part in parts]
    return fields


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    if "tool_type" in part:
        raise BadRecord(f"{where}: a tool that the provider ran ({part['tool_type']!r:.40})")
    if part.get("type") != "reasoning":
        return part
    if part.get("redacted"):
        return {"type": "redacted_thinking", "data": part.get("reasoning")}
    return {"type": "thinking", "thinking": part.get("reasoning") or "", "signature": part.get("signature")}
