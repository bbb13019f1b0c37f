"""Session logs of coding agents: files of a conversation's events, one per line, in order.

    ~/.claude/projects/*/*.jsonl               Claude Code: messages with uuid, parentUuid and sessionId
    ~/.codex/sessions/**/rollout-*.jsonl       Codex: {"timestamp": ..., "type": ..., "payload": {...}}

The lines of a session form one record. Of Claude Code's tree the branch that ends last is read; a sub-agent's messages
are a separate conversation. Reminders added by Claude Code itself are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from r2v.data.episode import Tokens
from r2v.data.interchange.content import Placed, normal, read_message
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, first_text, tokens_of
from r2v.data.interchange.messages import system_of
from r2v.data.interchange.responses import read_items
from r2v.wire.exchange import TokenUsage, usage_of
from r2v.wire.message import Message, mapping

Event = tuple[str, dict[str, Any]]
"""(file and line, its object)."""


@dataclass(frozen=True, kw_only=True)
class SessionLog:
    """Events of one session, or of one sub-agent in it. `client`: claude-code or codex."""

    client: str
    events: tuple[Event, ...]


def grouped(records: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file, with the lines of each session as one record."""
    sessions: dict[tuple[str, ...], list[Event]] = {}
    roots: dict[str, str] = {}
    for location, record in records:
        if isinstance(record, dict) and (key := _key(record, roots)):
            sessions.setdefault(key, []).append((location, record))
        else:
            yield location, record
    for (client, *_), events in sessions.items():
        if any("message" in event or "payload" in event for _, event in events):
            yield events[0][0], SessionLog(client=client, events=tuple(events))


def _key(event: dict[str, Any], roots: dict[str, str]) -> tuple[str, ...] | None:
    """Return the key of a line's session; None for a line that is no event. Marks of files, titles and queues belong to
    no session."""
    if not isinstance(event.get("type"), str) or "messages" in event:
        return None
    if isinstance(event.get("payload"), dict) and "timestamp" in event:
        return ("codex",)
    if "sessionId" not in event or "uuid" not in event:
        is_mark = "message" not in event and {"sessionId", "leafUuid", "messageId"} & event.keys()
        return ("claude-code", "") if is_mark else None
    session, uuid = str(event["sessionId"]), str(event["uuid"])
    root = roots[uuid] = roots.get(str(event.get("parentUuid")), uuid)
    agent = str(event.get("agentId") or root) if event.get("isSidechain") else ""
    return ("claude-code", session, agent)


def from_claude_code(record: Any) -> Conversation:
    """Return a session of Claude Code as a conversation. Raise BadRecord for other records."""
    if not isinstance(record, SessionLog):
        raise BadRecord("no session log of Claude Code: its lines have type, uuid and sessionId")
    read: list[Placed] = []
    replies: dict[str, int] = {}
    usages: dict[str, TokenUsage | None] = {}
    models: list[str] = []
    for location, event in _active(record.events):
        value, where = mapping(event.get("message")), f"line {location.rpartition(':')[2]}"
        attached = mapping(event.get("attachment"))
        if attached.get("type") == "queued_command":  # typed while the model worked
            value = {"role": "user", "content": attached.get("prompt")}
        elif event["type"] not in ("user", "assistant"):
            if value:
                raise BadRecord(f"{where}: a message in a line of type {event['type']!r:.40}")
            continue
        own = event.get("isMeta") and not read or event.get("isApiErrorMessage") or value.get("model") == "<synthetic>"
        if own:  # the client's own text before the goal, and its notes on failed requests
            continue
        message = read_message(dict(value), where)
        reply = str(value.get("id") or "") if message.role == "assistant" else ""
        if reply in replies:  # each block of a reply has a line, with results of its first calls between them
            first, begun = read[replies[reply]]
            read[replies[reply]] = (first, replace(begun, content=begun.parts + message.parts))
        else:
            replies |= {reply: len(read)} if reply else {}
            read.append((where, message))
        usages |= {reply: usage_of(value.get("usage"))} if reply else {}
        models += [model] if (model := first_text(value, ("model",))) else []
    return Conversation(
        messages=normal(read),
        model=models[0] if models else None,
        tokens=sum(map(tokens_of, usages.values()), start=Tokens()),
    )


def _active(events: tuple[Event, ...]) -> Iterator[Event]:
    """Yield the events of the branch that ends last. Parallel calls have branches of their own, so all lines of a reply
    on the branch, and the results of its calls, belong to it."""
    parents: dict[str, Any] = {}
    leaf = before = None
    for _, event in events:
        uuid, parent = str(event["uuid"]), first_text(event, ("parentUuid", "logicalParentUuid"))
        parents[uuid] = before if parent and parent not in parents else parent  # a parent that was not written
        leaf, before = (uuid if "message" in event else leaf), uuid
    branch: set[str] = set()
    while leaf is not None and leaf not in branch:
        branch.add(leaf)
        leaf = parents.get(leaf)
    replies = {_reply(event) for _, event in events if str(event["uuid"]) in branch} - {None}
    for location, event in events:
        if _reply(event) in replies or _answers(event) and str(event.get("parentUuid")) in branch:
            branch.add(str(event["uuid"]))
        if str(event["uuid"]) in branch:
            yield location, event


def _reply(event: Mapping[str, Any]) -> str | None:
    return first_text(mapping(event.get("message")), ("id",))


def _answers(event: Mapping[str, Any]) -> bool:
    content = mapping(event.get("message")).get("content")
    return isinstance(content, list) and any("tool_use_id" in mapping(block) for block in content)


def from_codex(record: Any) -> Conversation:
    """Return a session of Codex as a conversation. Raise BadRecord for other records."""
    if not isinstance(record, SessionLog):
        raise BadRecord("no session log of Codex: its lines have timestamp, type and payload")
    spoken = tuple(filter(None, (_spoken(event) for _, event in record.events)))
    system: tuple[Message, ...] = ()
    items: list[tuple[str, Any]] = []
    model, usage = None, None
    for location, event in record.events:
        kind, payload, where = event["type"], event["payload"], f"line {location.rpartition(':')[2]}"
        if kind == "response_item":
            items.append((where, _own(payload, spoken)))
        elif kind == "session_meta":
            base = payload.get("base_instructions") or payload.get("instructions")
            system = system or system_of(mapping(base).get("text") if isinstance(base, dict) else base)
        elif kind == "turn_context":
            model = model or first_text(payload, ("model",))
        elif kind == "compacted" and payload.get("message"):
            items.append((where, {"role": "user", "content": payload["message"]}))
        elif kind == "event_msg":
            usage = mapping(payload.get("info")).get("total_token_usage") or usage
        elif "role" in payload:
            raise BadRecord(f"{where}: a message in a line of type {kind!r:.40}")
    return Conversation(messages=(*system, *read_items(items)), model=model, tokens=tokens_of(usage_of(usage)))


def _spoken(event: Mapping[str, Any]) -> str | None:
    """Return the user's typed text if an event contains it, else None."""
    typed = event["type"] == "event_msg" and event["payload"].get("type") == "user_message"
    return first_text(event["payload"], ("message",)) if typed else None


def _own(item: dict[str, Any], spoken: tuple[str, ...]) -> dict[str, Any]:
    """Return an item; environment and rules that Codex writes in the user's role become the developer's, so that they
    are no goal."""
    if item.get("role") != "user" or not spoken:
        return item
    parts = item.get("content")
    texts = [str(mapping(part).get("text") or "") for part in parts] if isinstance(parts, list) else [str(parts)]
    return item if any(text.startswith(spoken) for text in texts) else {**item, "role": "developer"}
