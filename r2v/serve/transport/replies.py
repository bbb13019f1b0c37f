"""One reply in transit to the client: it is passed on, and read for the books and the record.

A stream is read event by event. Bytes pass unchanged, except that an event with a usage that the client did not ask
for is withheld.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from r2v.wire.message import mapping
from r2v.wire.sse import end_of_event, end_of_events, read_events
from r2v.wire.stream_facts import StreamFacts, WireName, informative, read_event, read_whole

_LONGEST_READ = 16 << 20
"""Bytes of a reply held for its record and the usage in its body, and of an event that is read."""

_LONGEST_END = 2
"""Bytes of the separator of two events that an earlier piece may end with, at most."""


class PassingReply:
    """Bytes of one reply in transit. withhold_usage: drop the chunk of Chat Completions that holds only the usage."""

    def __init__(self, wire: WireName, *, streams: bool, withhold_usage: bool = False) -> None:
        self.facts = StreamFacts()
        self._wire, self._streams, self.withholds = wire, streams, withhold_usage
        self._rest = bytearray()
        """The incomplete event at the end."""
        self._held: list[bytes] = []
        self.size = 0
        self._hash = hashlib.sha256()
        self._seen_first = False

    def add(self, piece: bytes) -> bytes:
        """Add the next decoded bytes and return the bytes to pass on."""
        self._hash.update(piece)
        self.size += len(piece)
        if self.size <= _LONGEST_READ:
            self._held.append(piece)
        if not self._streams:
            return piece
        begun = max(0, len(self._rest) - _LONGEST_END)
        self._rest += piece
        end = end_of_events(self._rest, begun)
        if end > begun:
            passed = self._read(self._take(end))
        else:  # an endless event passes unread, so that the memory stays bounded
            passed = self._take(len(self._rest)) if len(self._rest) > _LONGEST_READ else b""
        return passed if self.withholds else piece

    def _take(self, size: int) -> bytes:
        head = bytes(self._rest[:size])
        del self._rest[:size]
        return head

    def end(self) -> bytes:
        """Read the rest at the end of the reply and return the bytes still to pass on."""
        if self._streams:
            passed = self._read(self._take(len(self._rest)))
            return passed if self.withholds else b""
        if self.size <= _LONGEST_READ:
            try:
                body = json.loads(self.content)
            except (ValueError, RecursionError):  # a proxy's page of an error, for example: it holds no facts
                body = None
            if isinstance(body, Mapping):
                read_whole(self.facts, body)
        return b""

    def _read(self, events: bytes) -> bytes:
        """Read the facts in whole events and return the events to pass on. Most hold no facts and are never split."""
        passed: list[bytes] = []
        at = 0
        if not self._seen_first and events:
            at = self._read_event(events, 0, end_of_event(events, 0), passed)
        for position in informative(self._wire, events):
            if position >= at:
                start = end_of_events(events, at, position)
                passed.append(events[at:start])
                at = self._read_event(events, start, end_of_event(events, position), passed)
        return b"".join([*passed, events[at:]])

    def _read_event(self, events: bytes, start: int, end: int, passed: list[bytes]) -> int:
        withheld = False
        for event in read_events([events[start:end]]):
            self._seen_first = True
            read_event(self._wire, self.facts, event)
            value = mapping(event.json)
            withheld = self.withholds and value.get("choices") == [] and isinstance(value.get("usage"), Mapping)
        if not withheld:
            passed.append(events[start:end])
        return end

    @property
    def content(self) -> bytes:
        """Decoded bytes; for a reply over 16 MiB, the first ones."""
        return b"".join(self._held)

    @property
    def sha256(self) -> str:
        """Hash of the decoded bytes."""
        return self._hash.hexdigest()
