"""Traffic log: one line per turn, chained by hashes, without any text of a prompt or a reply.

    {"at": ..., "session": "s1", "turn": 3, "wire": "messages", "source": "llm", "usd": 0.031, ..., "prev": "9f2c..."}

`prev` is the hash of the previous line, so that an altered, lost or moved line breaks the chain. Lines are not synced,
and a crash of the machine may lose the last ones; money is in the journal, which is synced.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from r2v.errors import InputError
from r2v.log import logger
from r2v.storage.compression import CutShort, lines_of
from r2v.storage.files import append_whole, writing
from r2v.storage.paths import SESSIONS, TRAFFIC

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


_REMEMBERED = 10_000
"""Files remembered as mended, so that each is read through only once."""


class Recorder:
    """Writer of recorded sessions, as they went over the wire, below a server's folder.

    Each line is a zstd frame of its own. A frame torn by a kill is cut off before the next is written, because nothing
    after it could be read. The files hold prompts: the folder has mode 0700 and each file 0600.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / SESSIONS
        self._packer = zstandard.ZstdCompressor(level=1)
        self._mended: set[Path] = set()

    def write(self, session: str, row: dict[str, Any], request: bytes, reply: bytes) -> None:
        """Append a turn. request, reply: decoded bodies. Raises EnvironmentFault if the file cannot be written."""
        line = json.dumps({**row, **_text("request", request), **_text("reply", reply)}, ensure_ascii=False).encode()
        path = session_path(self._folder.parent, session)
        with writing(path):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mend(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                append_whole(descriptor, self._packer.compress(line + b"\n"))
            finally:
                os.close(descriptor)

    def _mend(self, path: Path) -> None:
        """Cut off a last frame torn by a kill. A file with other damage is kept unchanged."""
        if path in self._mended:
            return
        try:
            for _ in lines_of(path) if path.exists() else ():
                pass
        except CutShort as torn:
            logger.warning("recorded session truncated, its last turn was torn by a kill: file=%s", path)
            os.truncate(path, torn.whole)
        except InputError as error:  # recording goes on: the damage may be repaired, a lost turn cannot
            logger.warning("recorded session damaged: error=%s", error)
        if len(self._mended) == _REMEMBERED:
            self._mended.clear()
        self._mended.add(path)


def session_path(folder: Path, session: str) -> Path:
    """Return the file of a session. Its name is hashed, because clients choose it."""
    return folder / SESSIONS / f"{hashlib.blake2b(session.encode(), digest_size=12).hexdigest()}.jsonl.zst"


def _text(name: str, content: bytes) -> dict[str, str]:
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:  # a reply of another encoding is recorded all the same
        return {f"{name}_base64": base64.b64encode(content).decode()}
