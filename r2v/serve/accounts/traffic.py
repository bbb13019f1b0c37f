"""Traffic log: one line per turn, chained by hashes, without any text of a prompt or a reply.

    {"at": ..., "session": "s1", "turn": 3, "wire": "messages", "source": "llm", "usd": 0.031, ..., "prev": "9f2c..."}

`prev` is the hash of the previous line, so that an altered, lost or moved line breaks the chain. Lines are not synced,
and a crash of the machine may lose the last ones; money is in the journal, which is synced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from r2v.errors import InputError
from r2v.storage.files import append_whole, writing
from r2v.storage.paths import TRAFFIC

_FIRST = "0" * 32


class TrafficLog:
    """Log of one server, open for appending. The lease on the folder's journal makes it the only writer."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TRAFFIC
        self._file: BinaryIO | None = None
        self._last = _FIRST

    def open(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, then cut a torn last line. Exhaust it before the first append. Raises InputError if the
        chain is broken."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(descriptor, "r+b")
        size = 0
        for row, line in _chained(self._file, self.path):
            size, self._last = size + len(line), _hash(line)
            yield row
        with writing(self.path):
            self._file.truncate(size)

    def append(self, row: dict[str, Any]) -> None:
        """Write a row. Raises EnvironmentFault if the file cannot be written."""
        assert self._file is not None, "the log is not open"
        line = json.dumps({**row, "prev": self._last}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        with writing(self.path):
            append_whole(self._file.fileno(), line)
        self._last = _hash(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_traffic(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log, which may still be growing. Raises InputError if missing or its chain is broken."""
    path = folder / TRAFFIC
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; `r2v serve` and `r2v record` write it") from None
    with file:
        yield from (row for row, _ in _chained(file, path))


def _chained(file: BinaryIO, path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    last = _FIRST
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return  # torn by a kill, or still being written
        try:
            row = json.loads(line)
            intact = row.pop("prev") == last
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            intact = False
        if not intact:
            raise InputError(
                f"{path}:{number}: does not follow the line before it: the log was altered; restore it from a backup, "
                "or move its folder away"
            )
        yield row, line
        last = _hash(line)


def _hash(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=16).hexdigest()
