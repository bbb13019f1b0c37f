"""One reply on its way to the client: what is sent on, what is booked, what is recorded.

A reply that streams is read event by event. Bytes go on unchanged, except that an event is withheld whose usage the
client did not ask for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from r2v.wire.message import mapping
from r2v.wire.sse import EventSplitter, read_events
from r2v.wire.stream_facts import INFORMATIVE, StreamFacts, WireName, read_event, read_whole

_LONGEST_READ = 64 << 20
"""Bytes of a reply that are kept for its record and for a usage in its body."""


class PassingReply:
    """The bytes of one reply as they pass. withhold_usage: the chunk of Chat Completions that holds nothing else."""

    def __init__(self, wire: WireName, *, streams: bool, withhold_usage: bool = False) -> None:
        self.facts = StreamFacts()
        self._wire, self._streams, self.withholds = wire, streams, withhold_usage
        self._splitter = EventSplitter()
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
        events = self._splitter.add(piece)
        passed = [event for event in events if not self._read(event)]
        return b"".join(passed) if self.withholds else piece

    def end(self) -> bytes:
        """Take in the end of the bytes; return what is still to be sent on."""
        if self._streams:
            rest = self._splitter.rest()
            withheld = bool(rest) and self._read(rest)
            return rest if self.withholds and not withheld else b""
        if self.size <= _LONGEST_READ:
            try:
                body = json.loads(self.content)
            except (ValueError, RecursionError):
                body = None
            if isinstance(body, Mapping):
                read_whole(self.facts, body)
        return b""

    def _read(self, event: bytes) -> bool:
        """Read the facts of an event; True if it is withheld."""
        if self._seen_first and INFORMATIVE[self._wire].search(event) is None:
            return False
        withheld = False
        for one in read_events([event]):
            self._seen_first = True
            read_event(self._wire, self.facts, one)
            value = mapping(one.json)
            withheld = self.withholds and value.get("choices") == [] and isinstance(value.get("usage"), Mapping)
        return withheld

    @property
    def content(self) -> bytes:
        """The decoded bytes; of a reply longer than 64 MiB, the first."""
        return b"".join(self._kept)

    @property
    def sha256(self) -> str:
        """Hash of the decoded bytes."""
        return self._hash.hexdigest()
