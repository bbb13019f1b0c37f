"""One reply on its way to the client: what is sent on, what is booked, what is recorded.

A reply that streams is read event by event. Bytes go on unchanged, except that an event is withheld whose usage the
client did not ask for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from r2v.wire.message import mapping
from r2v.wire.sse import end_of_event, end_of_events, read_events
from r2v.wire.stream_facts import StreamFacts, WireName, informative, read_event, read_whole

_LONGEST_READ = 16 << 20
"""Bytes of a reply that are kept for its record and for a usage in its body, and of an event that are read."""


_LONGEST_END = 2
"""Most bytes of the mark between two events that an earlier piece may end with."""


class PassingReply:
    """The bytes of one reply as they pass. withhold_usage: the chunk of Chat Completions that holds nothing else."""

    def __init__(self, wire: WireName, *, streams: bool, withhold_usage: bool = False) -> None:
        self.facts = StreamFacts()
        self._wire, self._streams, self.withholds = wire, streams, withhold_usage
        self._rest = bytearray()
        """The begun event at the end."""
        self._kept: list[bytes] = []
        self.size = 0
        self._hash = hashlib.sha256()
        self._seen_first = False

    def add(self, piece: bytes) -> bytes:
        """Take in the next decoded bytes; return those to send on."""
        self._hash.update(piece)
        self.size += len(piece)
        if self.size <= _LONGEST_READ:
            self._kept.append(piece)
        if not self._streams:
            return piece
        begun = max(0, len(self._rest) - _LONGEST_END)
        self._rest += piece
        end = end_of_events(self._rest, begun)
        if end > begun:
            passed = self._read(self._take(end))
        else:  # an event without end is sent on unread
            passed = self._take(len(self._rest)) if len(self._rest) > _LONGEST_READ else b""
        return passed if self.withholds else piece

    def _take(self, size: int) -> bytes:
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    def end(self) -> bytes:
        """Take in the end of the bytes; return what is still to be sent on."""
        if self._streams:
            passed = self._read(self._take(len(self._rest)))
            return passed if self.withholds else b""
        if self.size <= _LONGEST_READ:
            try:
                body = json.loads(self.content)
            except (ValueError, RecursionError):
                body = None
            if isinstance(body, Mapping):
                read_whole(self.facts, body)
        return b""

    def _read(self, events: bytes) -> bytes:
        """Read the facts of whole events; those of them that are sent on. Most hold none and are never cut apart."""
        passed: list[bytes] = []
        at = 0
        if not self._seen_first and events:
            at = self._read_event(events, 0, end_of_event(events, 0), passed)
        for place in informative(self._wire, events):
            if place >= at:
                start = end_of_events(events, at, place)
                passed.append(events[at:start])
                at = self._read_event(events, start, end_of_event(events, place), passed)
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
        """The decoded bytes; of a reply longer than 16 MiB, the first."""
        return b"".join(self._kept)

    @property
    def sha256(self) -> str:
        """Hash of the decoded bytes."""
        return self._hash.hexdigest()
