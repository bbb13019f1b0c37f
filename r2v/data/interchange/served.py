"""Sessions recorded by `r2v serve` and `r2v record`: a folder data/served/<name>.

    traffic.jsonl                 a line per request, and the outcomes of tasks
    sessions/*.jsonl.zst          {"session": ..., "turn": 3, "wire": "messages", "request": "...", "reply": "..."}

Each request repeats its conversation, so a session is read from the last request of its longest conversation. Other
requests, such as those of sub-agents and for titles, are omitted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from r2v.data.episode import Tokens
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, amount, parsed, require
from r2v.data.interchange.litellm import asked, exchange
from r2v.log import logger
from r2v.storage.compression import CutShort, lines_of
from r2v.storage.paths import SESSIONS, TRAFFIC
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import WireReply
from r2v.wire.message import canonical, mapping
from r2v.wire.sse import read_events

_FORMATS = {"chat": chat, "responses": responses, "messages": anthropic}


@dataclass(kw_only=True)
class ServedSession:
    """Longest conversation of a session: its requests in order, each continuing the previous one."""

    turns: list[dict[str, Any]]
    items: list[Any]
    """Items of the last request's conversation."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """`task` and `success`, if known."""


def is_served(path: Path) -> bool:
    """True for the folder of a server."""
    return (path / TRAFFIC).is_file()


def served_sessions(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield (location, record) for each session of a server's folder. Raise InputError for a damaged file."""
    outcomes = _outcomes(folder / TRAFFIC)
    for path in sorted((folder / SESSIONS).glob("*.jsonl.zst")):
        try:
            threads = _threads(recorded_turns(path))
        except (ValueError, TypeError, LookupError) as error:
            yield str(path), BadRecord(f"not a recorded session ({error!r:.100})")
            continue
        if not threads:
            continue
        longest = max(threads, key=lambda thread: (len(thread.turns), len(thread.items)))
        last = longest.turns[-1]
        longest.outcome = outcomes.get(last["key"]) or outcomes.get(last["session"]) or {}
        yield f"{path.parent.parent.name}:{last['session']}", longest


def recorded_turns(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the turns of a session's file; a last turn cut off by a kill is logged and omitted. Raise InputError if the
    file is damaged, ValueError for a line that is no JSON."""
    try:
        for line in lines_of(path):
            yield json.loads(line)
    except CutShort:
        logger.warning("incomplete last turn omitted: file=%s", path)


def _outcomes(path: Path) -> dict[str, dict[str, Any]]:
    """Return key or session -> known task and success."""
    outcomes: dict[str, dict[str, Any]] = {}
    for line in lines_of(path):
        row = json.loads(line)
        if row["kind"] == "outcome":
            outcomes[row["key"]] = {"task": row["task"], "success": row["success"]}
        elif row["kind"] == "feedback" and row["session"] is not None:
            outcomes[row["session"]] = {"success": row["success"]}
    return outcomes


def _threads(rows: Iterable[dict[str, Any]]) -> list[ServedSession]:
    """Return the answered requests of a session grouped into conversations."""
    threads: list[ServedSession] = []
    for row in rows:
        if not row["whole"]:
            continue
        request = json.loads(row["request"])
        listed = request.get("input" if row["wire"] == "responses" else "messages")
        items = listed if isinstance(listed, list) else [listed]
        begun = next((thread for thread in reversed(threads) if _continues(items, thread.items)), None)
        if begun is None:
            threads.append(ServedSession(turns=[row], items=items))
        else:
            begun.turns.append(row)
            begun.items = items
    return threads


def _continues(items: list[Any], earlier: list[Any]) -> bool:
    """True if a conversation continues an earlier one, apart from cache marks, which clients move."""
    pairs = zip(items, earlier, strict=False)
    return len(items) > len(earlier) and all(a == b or canonical(a) == canonical(b) for a, b in pairs)


def from_served(record: Any) -> Conversation:
    """Return a recorded session as a conversation; turns of a small model are context. Raise BadRecord for other
    records."""
    if not isinstance(record, ServedSession):
        raise BadRecord("no recorded session: name the folder of a server, data/served/NAME")
    last = record.turns[-1]
    request = require(parsed(last["request"], "request"), dict, "request")
    talk = exchange(
        request, _reply(last), {"tools": request.get("tools"), "model": last["answered_by"] or last["model"]}
    )
    tokens = Tokens()
    places = talk.places
    usd: list[float | None] = [None] * len(places)
    small: set[int] = set()
    for turn in record.turns:
        number = len(Conversation(messages=asked(json.loads(turn["request"]))).places)
        if number < len(usd):
            usd[number] = turn["usd"]
            small |= {places[number]} if turn.get("source") == "small" else set()
        counts = mapping(turn["tokens"])
        cached, output = int(counts.get("cached", 0)), int(counts.get("output", 0))
        tokens += Tokens(llm_in=sum(counts.values()) - output, llm_out=output, llm_cached=cached)
    outcome = record.outcome
    return replace(
        talk,
        task_id=outcome.get("task"),
        outcome=outcome.get("success"),
        cost=sum(amount(turn["usd"]) for turn in record.turns),
        usd=tuple(usd),
        copied=frozenset(small),
        tokens=tokens,
    )


def _reply(turn: Mapping[str, Any]) -> WireReply:
    content = turn["reply"].encode() if "reply" in turn else base64.b64decode(turn["reply_base64"])
    wire: Any = _FORMATS[turn["wire"]]
    try:
        reply: WireReply = (
            wire.read_stream(read_events([content])) if turn["stream"] else wire.read_reply(json.loads(content))
        )
    except (chat.NotThisFormat, ValueError, TypeError, LookupError) as error:
        raise BadRecord(f"reply: {error!s:.120}") from None
    return reply
