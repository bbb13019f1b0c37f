"""View of a journal that another process writes: its answers, requests in flight and spending.

Only a digest, an offset and a hash of each answer stay in memory. A journal that differs from its witness, or holds a
malformed line, is logged and none of its answers is used; a line altered since it was read is logged and not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.providers.provider_requests import RequestVerdict, read_requests, reply_key
from r2v.llm.providers.spending.journal_state import verdict_of
from r2v.storage.files import replacing
from r2v.storage.lease import holder
from r2v.storage.witness import Witness

log = logging.getLogger(__name__)

JOURNAL_LEASE = "journal.lease"
"""Lease file in a journal's folder, held by its writer."""


@dataclass(kw_only=True)
class _OpenBatch:
    usd: float
    keys: set[str] | None = None
    """Reply keys of its requests without a result; None: its input file has not been read."""


@dataclass
class JournalView:
    """The content of the journal in `folder`, whose first row names `run`. Amounts are in USD."""

    folder: Path
    run: str
    spent: float = 0.0
    lost_usd: float = 0.0
    answered: int = 0
    called_before: bool = False
    """True if its preflight call has passed."""
    damage: str = ""
    """The reason why none of its answers is used; empty for an intact journal."""
    _answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Reply key -> (offset, hash) of the answer's line."""
    _claims: set[str] = field(default_factory=set)
    _calls: dict[str, float] = field(default_factory=dict)
    _batches: dict[str, _OpenBatch] = field(default_factory=dict)
    _read_to: int = 0
    _indexed_to: int = 0
    """Offset up to which its index covers it."""

    @property
    def path(self) -> Path:
        """Path of the journal."""
        return self.folder / "journal.jsonl"

    @property
    def committed(self) -> float:
        """USD spent, lost or reserved."""
        reserved = sum(batch.usd for batch in self._batches.values()) + sum(self._calls.values())
        return self.spent + self.lost_usd + reserved

    @property
    def alive(self) -> bool:
        """True if a living process writes it."""
        return holder(self.folder / JOURNAL_LEASE) is not None

    def look(self) -> None:
        """Read the rows appended since the last look. Raise FileNotFoundError if the journal is gone."""
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self._read_to:  # shorter: its writer cut a torn tail, or it is another file
                self._begin_again()
            try:
                if not self._read_to:
                    self._require_witnessed(file)
                file.seek(self._read_to)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # torn, or still being written
                    row = json.loads(line)
                    if not self._read_to and row.get("run") != self.run:
                        raise FileNotFoundError(f"{self.path} now belongs to another run")
                    self._apply(row, line)
                    self._read_to += len(line)
            except (InputError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                if not self.damage:  # log once; the journal stays damaged at every further look
                    log.warning("  journal damaged; its answers are not used: path=%s error=%s", self.path, error)
                self.damage = str(error)

    def remember(self, index: Path) -> None:
        """Start from an index that another process has written, if it belongs to this journal."""
        content = None if self._read_to else read_index(index)
        if content is None:
            return
        header, answers = content
        try:
            with self.path.open("rb") as file:
                first = json.loads(file.readline())
                if first.get("run") != self.run or header["run"] != self.run or file.seek(0, 2) < header["read_to"]:
                    return
            self.spent, self.lost_usd = float(header["spent"]), float(header["lost_usd"])
            self.answered, self.called_before = int(header["answered"]), bool(header["called_before"])
            self._answers, self._read_to = answers, int(header["read_to"])
            self._indexed_to = self._read_to
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # a cache only: read the journal instead
            self._begin_again()

    def write_index(self, index: Path) -> None:
        """Write an index for other processes, if the journal is large and has nothing in flight."""
        if self._read_to == self._indexed_to or self.answered < WORTH_AN_INDEX or self.damage:
            return
        if self._claims or self._calls or self._batches:
            return
        figures = ("run", "spent", "lost_usd", "answered", "called_before")
        header = {name: getattr(self, name) for name in figures} | {"read_to": self._read_to}
        try:
            write_index(index, header, self._answers)
        except EnvironmentFault as error:
            log.warning("  journal index not written: error=%s", error)

    def _begin_again(self) -> None:
        """Drop all that was read, so that the next look reads the journal from its start."""
        for read in (self._answers, self._claims, self._calls, self._batches):
            read.clear()
        self.spent, self.lost_usd, self.answered, self._read_to = 0.0, 0.0, 0, 0
        self.called_before = False

    def _require_witnessed(self, file: BinaryIO) -> None:
        """Raise InputError if the journal differs from its witness."""
        witness = Witness(self.path, "nothing of it is used")
        file.seek(0)
        for line in file:
            witness.see(line)
        witness.require_all()

    def _apply(self, row: Mapping[str, Any], line: bytes) -> None:
        match row["row"]:
            case "claims":
                self._claims = set(row["keys"])
            case "claim":
                self._claims.update(row["keys"])
            case "release":
                self._claims.difference_update(row["keys"])
            case "call" | "forward":
                self._calls[row["id"]] = row["usd"]
            case "served":
                self._calls.pop(row["id"], None)
                self.spent += row["usd"]
                self.answered += 1
            case "intent":
                self._batches[row["batch"]] = _OpenBatch(usd=row["usd"])
            case "applied" | "dropped":
                self._batches.pop(row["batch"], None)
            case "lost":
                self._calls.pop(row["id"], None)
                self.lost_usd += row["usd"]
            case "answer" | "failed":
                self._apply_result(row, line)

    def _apply_result(self, row: Mapping[str, Any], line: bytes) -> None:
        key = _key_of(row)
        self._calls.pop(row["id"], None)
        batch = self._batches.get(row["batch"] or "")
        if batch is not None and batch.keys is not None:
            batch.keys.discard(key)
        self.spent += row["usd"]
        if row["row"] == "answer":
            self.answered += 1
            self._answers[key] = (self._read_to, _line_hash(line))
        self.called_before |= row["row"] == "failed" and row["kind"] == "preflight"
        if row["row"] == "answer" or row["kind"] == "fatal":
            self._claims.discard(key)

    def answers(self, key: str) -> bool:
        """True if it holds an answer of this reply key."""
        return not self.damage and key in self._answers

    def answer(self, key: str) -> RequestVerdict | None:
        """Return the answer of a reply key; None without one, or if its line was altered."""
        if not self.answers(key):
            return None
        offset, content = self._answers[key]
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                line = file.readline()
            row = json.loads(line) if _line_hash(line) == content else None
            if row is not None and _key_of(row) == key:
                return verdict_of(row)
            log.warning("  answer altered in its journal and not used: path=%s byte=%d", self.path, offset)
        except OSError as error:  # moved or unreadable; the request is then sent here
            log.warning("  journal unreadable; its answers are not used: path=%s error=%s", self.path, error.strerror)
        del self._answers[key]
        return None

    def claims(self, key: str) -> bool:
        """True if a living process has claimed this request, and so sends it or has sent it."""
        return not self.damage and key in self._claims and self.alive

    def in_batch(self, key: str) -> bool:
        """True if the request is in a provider batch and has no result yet."""
        return not self.damage and any(key in self._keys_of(name, batch) for name, batch in list(self._batches.items()))

    def _keys_of(self, name: str, batch: _OpenBatch) -> set[str]:
        if batch.keys is None:
            path = self.folder / "inputs" / f"{name}.jsonl"
            try:
                keys = {reply_key(request.identity) for request in read_requests(path)}
            except (OSError, ValueError, LookupError):
                return set()  # its input was deleted when its results were applied, which the next look shows
            batch.keys = keys - self._answers.keys()
        return batch.keys


def _key_of(row: Mapping[str, Any]) -> str:
    """Return the reply key of a result row's request."""
    conversation, turn = row["id"].split("-")[1:3]
    return reply_key((conversation, int(turn), row["sha256"]))


def _line_hash(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=8).digest()


WORTH_AN_INDEX = 500
"""Least number of answers for which an index is written."""
_VERSION = 1
_ANSWER = struct.Struct("<16sQ16s")  # key, offset, hash; little-endian on every machine


def write_index(path: Path, header: Mapping[str, Any], answers: Mapping[str, tuple[int, bytes]]) -> None:
    """Write the index of a closed journal's answers: a header of one JSON line, then 40 bytes per answer. It is a cache
    of which all processes write the same bytes. Raise EnvironmentFault if the disk refuses."""
    body = b"".join(
        _ANSWER.pack(bytes.fromhex(key), offset, content.ljust(16, b"\0"))
        for key, (offset, content) in sorted(answers.items())
    )
    head = {"version": _VERSION, **header, "sha256": hashlib.sha256(body).hexdigest()}
    with replacing(path) as file:
        file.write(json.dumps(head).encode() + b"\n" + body)


def read_index(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, bytes]]] | None:
    """Return the header and the answers; None without an index, or for a damaged one."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(head)
        if header["version"] != _VERSION or hashlib.sha256(body).hexdigest() != header["sha256"]:
            return None
        return header, dict(_answers(body))
    except (OSError, ValueError, LookupError, TypeError):  # the journal itself is read instead
        return None


def _answers(body: bytes) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for key, offset, content in _ANSWER.iter_unpack(body):
        yield key.hex(), (offset, content[:8])
