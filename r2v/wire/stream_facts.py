"""Facts of a reply read from its stream: id, model, token usage, end, error.

The text is not assembled, so a proxy can read the facts of a stream that it forwards at little cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from r2v.wire.errors import WireError, read_error
from r2v.wire.exchange import TokenUsage, usage_of
from r2v.wire.message import mapping
from r2v.wire.sse import Event

WireName = Literal["chat", "responses", "messages"]


@dataclass(kw_only=True, slots=True)
class StreamFacts:
    """Facts read so far. `ended`: True once the event that ends a reply in its format has arrived."""

    id: str = ""
    model: str = ""
    ended: bool = False
    error: WireError | None = None
    counted: dict[str, Any] = field(default_factory=dict)
    """Usage fields by the names of the format. The last value of a field wins: Messages repeats cumulative counts."""

    @property
    def usage(self) -> TokenUsage | None:
        """Token usage; None if the reply has not reported any."""
        return usage_of(self.counted)


def read_event(wire: WireName, facts: StreamFacts, event: Event) -> None:
    """Update the facts by one event of a stream."""
    value = event.json
    if value is None:
        facts.ended = facts.ended or event.data.strip() == "[DONE]"
        return
    _READERS[wire](facts, value, str(value.get("type") or event.name))


def read_whole(facts: StreamFacts, body: Mapping[str, Any]) -> None:
    """Update the facts by a whole reply body, in any of the formats."""
    _head(facts, body)
    _usage(facts, body.get("usage"))
    facts.ended = True
    if body.get("error"):
        facts.error = read_error(None, body)


def _chat(facts: StreamFacts, value: Mapping[str, Any], kind: str) -> None:
    choice = mapping(next(iter(value.get("choices") or ()), None))
    if not facts.id:
        _head(facts, value)
    _usage(facts, value.get("usage") or choice.get("usage") or mapping(value.get("x_groq")).get("usage"))
    facts.ended = facts.ended or bool(choice.get("finish_reason"))
    if value.get("error"):
        facts.error = read_error(None, value)


def _responses(facts: StreamFacts, value: Mapping[str, Any], kind: str) -> None:
    response = mapping(value.get("response"))
    if response:
        _head(facts, response)
        _usage(facts, response.get("usage"))
    if kind in ("response.completed", "response.incomplete", "response.failed"):
        facts.ended = True
        if kind == "response.failed":
            facts.error = read_error(None, {"error": response.get("error") or {"code": "server_error"}})
    elif kind == "error":
        facts.error = read_error(None, value.get("error") and value or {"error": value})


def _messages(facts: StreamFacts, value: Mapping[str, Any], kind: str) -> None:
    if kind == "message_start":
        message = mapping(value.get("message"))
        _head(facts, message)
        _usage(facts, message.get("usage"))
    elif kind == "message_delta":
        _usage(facts, value.get("usage"))
        facts.ended = True
    elif kind == "message_stop":
        facts.ended = True
    elif kind == "error":
        facts.error = read_error(None, value)


def _head(facts: StreamFacts, value: Mapping[str, Any]) -> None:
    facts.id, facts.model = str(value.get("id") or facts.id), str(value.get("model") or facts.model)


def _usage(facts: StreamFacts, usage: object) -> None:
    facts.counted |= {name: number for name, number in mapping(usage).items() if number is not None}


_READERS = {"chat": _chat, "responses": _responses, "messages": _messages}


def informative(wire: WireName, events: bytes) -> list[int]:
    """Return positions in all events that carry a fact, in order. Most events carry none and need no parsing."""
    positions = []
    for mark, pattern in _INFORMATIVE[wire]:
        at = events.find(mark)
        while at >= 0:
            if pattern.match(events, at):
                positions.append(at)
            at = events.find(mark, at + len(mark))
    return sorted(positions)


_INFORMATIVE: dict[WireName, tuple[tuple[bytes, re.Pattern[bytes]], ...]] = {
    "chat": (
        (b'"usage"', re.compile(rb'"usage"\s*:\s*\{')),
        (b'"error"', re.compile(rb'"error"\s*:\s*[{"]')),
        (b'"finish_reason"', re.compile(rb'"finish_reason"\s*:\s*"')),
        (b"[DONE]", re.compile(rb"")),
    ),
    "responses": (
        (b"response.", re.compile(rb"response\.(?:created|completed|incomplete|failed)")),
        (b'"error"', re.compile(rb"")),
        (b"event:", re.compile(rb"event: ?error")),
    ),
    "messages": (
        (b"message_", re.compile(rb"message_(?:start|delta|stop)")),
        (b'"error"', re.compile(rb"")),
        (b"event:", re.compile(rb"event: ?error")),
    ),
}
"""Literals, for a fast search, and the pattern that has to match at each hit."""
