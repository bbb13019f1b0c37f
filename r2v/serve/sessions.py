"""Sessions: assignment of a request to a client's conversation.

    session = sessions.find(headers, body, wire="messages")
    session.name, session.source          # "0f3c...", "x-claude-code-session-id"

Clients name their session in a header or in the body. Without a name, a request belongs to the session whose earlier
request's messages it begins with. Messages are compared without cache marks and without the spacing of arguments,
because clients change both between turns.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from r2v.serve.transport.headers import first
from r2v.wire.message import canonical, mapping
from r2v.wire.stream_facts import WireName

HEADERS = (
    "x-r2v-session", "x-claude-code-session-id", "session-id", "session_id", "x-session-id", "x-session-affinity",
)  # fmt: skip
"""Headers that name a session: R2V's own, Claude Code's, Codex's of two versions, opencode's."""
_LONGEST = 200
"""Characters of a session's name."""
_UNDERSCORED = re.compile(r"_session_([A-Za-z0-9-]{8,})$")
_REMEMBERED = 100_000
"""Sessions and prefixes held in memory."""


@dataclass(kw_only=True, slots=True)
class AgentSession:
    """A conversation of a client, with the sub-agents and housekeeping calls that carry its name."""

    name: str
    source: str
    """The header or field that named it, or `conversation`."""
    turns: int = 0
    small_turns: set[str] = field(default_factory=set)
    """Hashes of the small model's texts (`state.said_hash`)."""
    decisions: dict[str, str] = field(default_factory=dict)
    """Conversation (`prefix`) -> its author, so that a repeated request gets the same one."""


class Sessions:
    """Sessions of a server; beyond `_REMEMBERED`, the least recent are dropped."""

    def __init__(self) -> None:
        self._named: OrderedDict[str, AgentSession] = OrderedDict()
        self._by_prefix: OrderedDict[str, str] = OrderedDict()
        self._answered: OrderedDict[str, bool] = OrderedDict()

    def find(
        self, headers: Iterable[tuple[bytes, bytes]], values: Mapping[str, Any], wire: WireName, *, key: str
    ) -> AgentSession:
        """Return the session of a request; a new one if none matches. key: name of the client's key; conversations of
        different keys never share a session."""
        name, source = declared(list(headers), values)
        if not name:
            source = "conversation"
            prefixes = [f"{key} {digest}" for digest in _prefixes(values, wire)]
            # a repeat of the whole conversation is a retry; if it was answered, it is a new session instead
            matchable = [begin for begin in prefixes if begin not in self._answered or begin != prefixes[-1]]
            name = next((self._by_prefix[begin] for begin in reversed(matchable) if begin in self._by_prefix), "")
            name = name or f"c-{secrets.token_hex(8)}"
            if prefixes:
                _remember(self._by_prefix, prefixes[-1], name)
        session = self._named.get(name) or AgentSession(name=name, source=source)
        _remember(self._named, name, session)
        return session

    def answered(self, conversation: str, *, key: str) -> None:
        """Note that the request with this conversation (`prefix`) got its whole reply."""
        if conversation:
            _remember(self._answered, f"{key} {conversation}", True)

    def get(self, name: str) -> AgentSession | None:
        """Return a session by its name; None if there is none."""
        return self._named.get(name)

    def restore(self, row: Mapping[str, Any]) -> None:
        """Restore a turn from the log of an earlier process."""
        name, conversation, key = row["session"], row["conversation"], row["key"]
        session = self._named.get(name) or AgentSession(name=name, source=row["by"])
        session.turns += 1
        _remember(self._named, name, session)
        if conversation:
            _remember(self._by_prefix, f"{key} {conversation}", name)
        if row["whole"]:
            self.answered(conversation, key=key)
            if row.get("decision", {}).get("source") == row["source"]:
                session.decisions[conversation] = row["source"]
            session.small_turns |= {row["said"]} if "said" in row else set()


def _remember(recent: OrderedDict[str, Any], key: str, value: Any) -> None:
    recent[key] = value
    recent.move_to_end(key)
    if len(recent) > _REMEMBERED:
        recent.popitem(last=False)


def declared(headers: list[tuple[bytes, bytes]], values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the session that a client names and the field that names it. The name is empty if missing or invalid."""
    for header in HEADERS:
        if name := _name(first(headers, header)):
            return name, header
    user = mapping(values.get("metadata")).get("user_id")
    if isinstance(user, str) and len(user) < 10_000:
        if match := _UNDERSCORED.search(user):
            return match[1], "metadata.user_id"
        if user.startswith("{"):
            try:
                fields = json.loads(user)
            except (ValueError, RecursionError):  # a user id of the client's own form names no session
                fields = None
            if name := _name(mapping(fields).get("session_id")):
                return name, "metadata.user_id"
    return _name(values.get("prompt_cache_key")), "prompt_cache_key"


def _name(value: object) -> str:
    """Return the value if it is a session's name, a short printable text; else an empty text."""
    return value if isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable() else ""


def prefix(values: Mapping[str, Any], wire: WireName) -> str:
    """Return the digest of a request's whole conversation; empty if it has none."""
    return next(reversed(list(_prefixes(values, wire))), "")


def _prefixes(values: Mapping[str, Any], wire: WireName) -> Iterator[str]:
    """Yield the digest of each prefix of the conversation, the whole one last."""
    items = values.get("input" if wire == "responses" else "messages")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list):
        return
    state = hashlib.blake2b(digest_size=12)
    for name in ("system", "instructions"):
        if name in values:
            state.update(_canonical(values[name]))
    for item in items:
        state.update(_canonical(item))
        yield state.hexdigest()


def _canonical(item: object) -> bytes:
    return json.dumps(canonical(item), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )
