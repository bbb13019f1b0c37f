"""Play lines: what one play came to, as a line of a file that carries its own hash.

A play is an episode, or the records that a task's play came to (rows of features, candidates of states). Its line is
appended as it ends and is whole or is nothing: a torn, altered or foreign line is told apart by its hash, and its play
is played again.

    {"sha256": of what follows, "key": of what determined the play, "fault": false, "records": [["Episode", {...}]]}
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from r2v.data.episode import to_dict
from r2v.data.schema import from_dict
from r2v.storage.files import writing

_SYNC_SECONDS = 5.0
"""A power cut loses at most the plays of so long; a kill loses only those in flight."""
_LINE = re.compile(
    rb'\{"sha256":"([0-9a-f]{64})",("key":"([0-9a-f]{32})","fault":(true|false),"records":.*)\}\n', re.DOTALL
)


REFUSED = "no answer: "
"""How the reason of a play begins that a provider refused for good, in a question asked beside an episode."""


@dataclass(frozen=True, kw_only=True)
class BrokenPlay:
    """The only record of a play that a fault of the world ended before anything was measured."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayHeader:
    """What a line says before its records: the play's key, and whether a fault of the world ended it."""

    key: str
    fault: bool


def fault_of(records: Sequence[Any]) -> str | None:
    """Why a play measured nothing; None where it did."""
    first = records[0] if records else None
    fault: str | None = first.reason if isinstance(first, BrokenPlay) else getattr(first, "env_fault", None)
    return fault


def play_line(key: str, records: Sequence[Any]) -> bytes:
    """The line of a play, newline included."""
    plain = [[type(record).__name__, to_dict(record)] for record in records]
    body = {"key": key, "fault": fault_of(records) is not None, "records": plain}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)[1:-1].encode()
    return b'{"sha256":"%s",%s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


def header_of(line: bytes) -> PlayHeader | None:
    """The header of a line whose hash holds; None for any other line."""
    match = _LINE.fullmatch(line)
    if match is None or hashlib.sha256(match[2]).hexdigest().encode() != match[1]:
        return None
    return PlayHeader(key=match[3].decode(), fault=match[4] == b"true")


def line_hash(line: bytes) -> str:
    """What stands for a line of an artifact's file: 32 hex digits of its SHA-256, newline left out."""
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()[:32]


def raw_records(line: bytes) -> list[list[Any]]:
    """The records of a line whose hash holds, as [kind, fields]. Raises ValueError for another line."""
    if header_of(line) is None:
        raise ValueError("its hash is not that of its content")
    records: list[list[Any]] = json.loads(line)["records"]
    return records


def records_of(raw: Sequence[Sequence[Any]], kinds: Sequence[type]) -> list[Any]:
    """Plain records as dataclasses of these kinds. Raises ValueError, TypeError, KeyError, AttributeError or
    RecursionError where they are of another R2V."""
    by_name = {kind.__name__: kind for kind in (*kinds, BrokenPlay)}
    return [from_dict(by_name[name], fields) for name, fields in raw]


class PlayFile:
    """A file of play lines, opened for appending when the first play comes. Its one writer holds the lease of the
    block whose plays it has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._synced = 0.0

    def append(self, key: str, records: Sequence[Any]) -> tuple[int, int]:
        """Write down what a play came to; returns where its line begins and ends. Raises EnvironmentFault where the
        disk refuses."""
        line = play_line(key, records)
        with writing(self.path):
            if self._file is None:
                self._file = self._opened()
            place = self._file.tell()
            if self._file.write(line) < len(line):  # how a disk says that it became full meanwhile
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        return place, place + len(line)

    def close(self) -> None:
        """Wait until the disk has everything."""
        if self._file is not None:
            with writing(self.path), self._file as file:
                os.fsync(file.fileno())
            self._file = None

    def _opened(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab", buffering=0)
        if _torn(self.path):
            file.write(b"\n")  # behind what a killed process left of its line
        return file


def lines_from(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(where it begins, the line) of each line from an offset on; the last one may be torn."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            yield offset, line
            offset += len(line)


def line_at(path: Path, offset: int) -> bytes:
    """The line that begins there. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()


def _torn(path: Path) -> bool:
    """Whether the last line of a file has no end."""
    size = path.stat().st_size
    return size > 0 and line_at(path, size - 1) != b"\n"
