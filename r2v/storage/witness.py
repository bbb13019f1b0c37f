"""A witness beside an append-only file: how long the file was when it was last synced, and the hash of that much.

    journal.jsonl            lines, appended and synced
    journal.jsonl.witness    {"bytes":4096,"sha256":"...","check":"..."}

Whoever opens the file again reads what was written, or is refused: a flipped bit, lost lines and a lost file are seen,
which a last line that a kill cut off is not. The witness is written in place after each sync, so it never knows of more
than the disk has; a file longer than it is one whose writer was killed. A file without a witness, as earlier versions
wrote them, gets one; a witness that is damaged itself is made again with a line in the log.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

from r2v.errors import InputError

log = logging.getLogger(__name__)

_RECORD = re.compile(rb'\{"bytes":(\d+),"sha256":"([0-9a-f]{64})","check":"([0-9a-f]{16})"\}\n *')
_WIDTH = 160
"""Bytes of a witness, padded: it is always replaced whole."""


class Witness:
    """The witness of the file at `path`. `remedy` ends the refusal: what the user may do."""

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self._witnessed, self._remedy = path.with_name(f"{path.name}.witness"), path, remedy
        self._length, self._hash = 0, hashlib.sha256()
        self._recorded = self._read()

    def require_file(self) -> None:
        """Raises InputError where the file is gone, or is no file."""
        if self._witnessed.exists() and not self._witnessed.is_file():
            raise InputError(f"{self._witnessed}: is not a file; {self._remedy}")
        if not self._witnessed.exists() and self._recorded is not None:
            raise self._damaged(f"it is gone, and {self._recorded[0]} bytes had been written to it")

    def see(self, line: bytes) -> None:
        """Take in the next line that was read, or that is about to be written. Raises InputError where the file is not
        what was written."""
        self._length += len(line)
        self._hash.update(line)
        if self._recorded is None or self._length < self._recorded[0]:
            return
        length, expected = self._recorded
        if self._length > length or self._hash.hexdigest() != expected:
            raise self._damaged(f"its first {length} bytes are not those that were written")
        self._recorded = None

    def require_all(self) -> None:
        """Call it when every line was seen. Raises InputError where the file is shorter than it was."""
        if self._recorded is not None and self._length < self._recorded[0]:
            raise self._damaged(f"{self._recorded[0] - self._length} of its {self._recorded[0]} bytes are gone")
        self._recorded = None

    @property
    def seen(self) -> bytes:
        """The record of what was seen so far, to be written once that is synced."""
        return _record(self._length, self._hash.hexdigest())

    def write(self, seen: bytes | None = None) -> None:
        """Write down what was seen, by now or when `seen` was taken: call it when all of that is synced. Raises
        OSError."""
        text = self.seen if seen is None else seen
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, text, 0)
            if os.fstat(descriptor).st_size != len(text):
                os.ftruncate(descriptor, len(text))
        finally:
            os.close(descriptor)

    def _read(self) -> tuple[int, str] | None:
        """Length and hash that are written down; None where nothing is."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); {self._remedy}") from None
        match = _RECORD.fullmatch(content)
        if match is None or content != _record(int(match[1]), match[2].decode()):
            log.warning("  %s is damaged and made again; %s is read without it", self.path, self._witnessed.name)
            return None
        length = int(match[1])
        return (length, match[2].decode()) if length else None

    def _damaged(self, reason: str) -> InputError:
        return InputError(f"{self._witnessed}: is damaged: {reason}; {self._remedy}")


def _record(length: int, sha256: str) -> bytes:
    text = f'{{"bytes":{length},"sha256":"{sha256}","check":"'
    check = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f'{text}{check}"}}\n'.ljust(_WIDTH).encode()
