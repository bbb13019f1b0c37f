"""The view of a journal that another process writes: what is answered, in flight and spent there.

    view = JournalView(folder, run)
    view.look()                         # takes in the rows that were appended since
    view.answer(key)                    # the verdict, read again and held against its hash; or None

Only a digest of each request, a place and a hash stay in memory. A journal that is not what its witness says, or that
holds a line that is no row, is named and its answers are never used; so is a line that was altered since it was read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.providers.provider_requests import RequestVerdict, read_requests, reply_key
from r2v.llm.providers.spending.journal_index import WORTH_AN_INDEX, read_index, write_index
from r2v.llm.providers.spending.journal_state import verdict_of
from r2v.storage.lease import holder
from r2v.storage.witness import Witness

log = logging.getLogger(__name__)

JOURNAL_LEASE = "journal.lease"
"""In a journal's folder: who writes it."""


@dataclass(kw_only=True)
class _OpenBatch:
    usd: float
    keys: set[str] | None = None
    """Requests without a result; None: its input has not been read."""


@dataclass
class JournalView:
    """What the journal in `folder` says, whose first row names `run`."""

    folder: Path
    run: str
    spent: float = 0.0
    lost_usd: float = 0.0
    answered: int = 0
    called_before: bool = False
    """Whether the call before its run has passed."""
    damage: str = ""
    """Why nothing of it is used, if so."""
    _answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Key -> where the row stands, and the hash of its line."""
    _claims: set[str] = field(default_factory=set)
    _calls: dict[str, float] = field(default_factory=dict)
    _batches: dict[str, _OpenBatch] = field(default_factory=dict)
    _read_to: int = 0
    _indexed_to: int = 0
    """How far its index goes."""

    @property
    def path(self) -> Path:
        """The journal."""
        return self.folder / "journal.jsonl"

    @property
    def committed(self) -> float:
        """USD that are spent, may have been spent, or are reserved."""
        reserved = sum(batch.usd for batch in self._batches.values()) + sum(self._calls.values())
        return self.spent + self.lost_usd + reserved

    @property
    def alive(self) -> bool:
        """Whether a living process writes it."""
        return holder(self.folder / JOURNAL_LEASE) is not None

    def look(self) -> None:
        """Take in what was appended since the last look. Raises FileNotFoundError where the journal is gone."""
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self._read_to:
                self._begin_again()
            try:
                if not self._read_to:
                    self._require_witnessed(file)
                file.seek(self._read_to)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # torn, or about to be ended
                    row = json.loads(line)
                    if not self._read_to and row.get("run") != self.run:
                        raise FileNotFoundError(f"{self.path} is another journal by now")
                    self._apply(row, line)
                    self._read_to += len(line)
            except (InputError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                if not self.damage:
                    log.warning("  %s is damaged, and none of its answers is used: %s", self.path, error)
                self.damage = str(error)

    def remember(self, index: Path) -> None:
        """Start from what another process has read of it, if that is of this journal."""
        found = None if self._read_to else read_index(index)
        if found is None:
            return
        header, answers = found
        try:
            with self.path.open("rb") as file:
                first = json.loads(file.readline())
                if first.get("run") != self.run or header["run"] != self.run or file.seek(0, 2) < header["read_to"]:
                    return
            self.spent, self.lost_usd = float(header["spent"]), float(header["lost_usd"])
            self.answered, self.called_before = int(header["answered"]), bool(header["called_before"])
            self._answers, self._read_to = answers, int(header["read_to"])
            self._indexed_to = self._read_to
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            self._begin_again()

    def write_index(self, index: Path) -> None:
        """Leave what was read for others, where it is much and nothing of it is in flight."""
        if self._read_to == self._indexed_to or self.answered < WORTH_AN_INDEX or self.damage:
            return
        if self._claims or self._calls or self._batches:
            return
        figures = ("run", "spent", "lost_usd", "answered", "called_before")
        header = {name: getattr(self, name) for name in figures} | {"read_to": self._read_to}
        try:
            write_index(index, header, self._answers)
        except EnvironmentFault as error:
            log.warning("  %s", error)

    def _begin_again(self) -> None:
        """Forget what was read: the journal is shorter than it was."""
        for read in (self._answers, self._claims, self._calls, self._batches):
            read.clear()
        self.spent, self.lost_usd, self.answered, self._read_to = 0.0, 0.0, 0, 0
        self.called_before = False

    def _require_witnessed(self, file: BinaryIO) -> None:
        """Raises InputError where the journal is not what its witness saw."""
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
        """Whether it holds an answer of this key."""
        return not self.damage and key in self._answers

    def answer(self, key: str) -> RequestVerdict | None:
        """The answer of this key; None where there is none, or it is not what was written."""
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
            log.warning("  %s: the answer at byte %d is not what was written, and is not used", self.path, offset)
        except OSError as error:
            log.warning("  %s cannot be read (%s): its answers are not used", self.path, error.strerror)
        del self._answers[key]
        return None

    def claims(self, key: str) -> bool:
        """Whether a living process is about to ask this, or has asked it."""
        return not self.damage and key in self._claims and self.alive

    def in_batch(self, key: str) -> bool:
        """Whether it is in a provider batch whose results are not all there."""
        return not self.damage and any(key in self._keys_of(name, batch) for name, batch in list(self._batches.items()))

    def _keys_of(self, name: str, batch: _OpenBatch) -> set[str]:
        if batch.keys is None:
            path = self.folder / "inputs" / f"{name}.jsonl"
            try:
                asked = {reply_key(request.identity) for request in read_requests(path)}
            except (OSError, ValueError, LookupError):
                return set()  # it has just been applied: the next look shows it
            batch.keys = asked - self._answers.keys()
        return batch.keys


def _key_of(row: Mapping[str, Any]) -> str:
    """The request that a result is of."""
    conversation, turn = row["id"].split("-")[1:3]
    return reply_key((conversation, int(turn), row["sha256"]))


def _line_hash(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=8).digest()
