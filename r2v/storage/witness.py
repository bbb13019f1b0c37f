"""Witness: sidecar of an append-only file with the length and the hash of its content at the last sync.

    journal.jsonl            lines, appended and synced
    journal.jsonl.witness    {"bytes":4096,"sha256":"...","check":"..."}

The next reader detects a flipped bit, lost lines and a lost file; a last line cut off by a kill is no damage. The
witness is written in place after each sync, so it never covers more than the disk has; a longer file had its writer
killed. A file without a witness, as earlier versions wrote them, gets one; a damaged witness is made again and logged.
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
"""Bytes of a witness, padded to a fixed length so that each write replaces it whole."""


class Witness:
    """Witness of the file at `path`. `remedy`: instruction to the user at the end of error messages."""

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self._witnessed, self._remedy = path.with_name(f"{path.name}.witness"), path, remedy
        self._length, self._hash = 0, hashlib.sha256()
        self._recorded = self._read()

    def require_file(self) -> None:
        """Raise InputError if the file is missing or not a file."""
        if self._witnessed.exists() and not self._witnessed.is_file():
            raise InputError(f"{self._witnessed}: is not a file; {self._remedy}")
        if not self._witnessed.exists() and self._recorded is not None:
            raise self._damaged(f"it is gone, and {self._recorded[0]} bytes had been written to it")

    def see(self, line: bytes) -> None:
        """Add the next line read, or about to be written, to the hash. Raise InputError if the file has changed."""
        self._length += len(line)
        self._hash.update(line)
        if self._recorded is None or self._length < self._recorded[0]:
            return
        length, expected = self._recorded
        if self._length > length or self._hash.hexdigest() != expected:
            raise self._damaged(f"its first {length} bytes are not those that were written")
        self._recorded = None

    def require_all(self) -> None:
        """Raise InputError if the file is shorter than recorded; call it after the last line."""
        if self._recorded is not None and self._length < self._recorded[0]:
            raise self._damaged(f"{self._recorded[0] - self._length} of its {self._recorded[0]} bytes are gone")
        self._recorded = None

    @property
    def seen(self) -> bytes:
        """Record of all lines so far, to be written once they are synced."""
        return _record(self._length, self._hash.hexdigest())

    def write(self, seen: bytes | None = None) -> None:
        """Write the record `seen`, by default that of all lines so far; call it after their sync. Raise OSError."""
        text = self.seen if seen is None else seen
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, text, 0)
            if os.fstat(descriptor).st_size != len(text):
                os.ftruncate(descriptor, len(text))
        finally:
            os.close(descriptor)

    def _read(self) -> tuple[int, str] | None:
        """Return the recorded length and hash, or None."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); {self._remedy}") from None
        match = _RECORD.fullmatch(content)
        if match is None or content != _record(int(match[1]), match[2].decode()):
            # The file itself shows no damage, and may hold paid replies.
            log.warning("  witness damaged, making it again: file=%s witness=%s", self._witnessed.name, self.path)
            return None
        length = int(match[1])
        return (length, match[2].decode()) if length else None

    def _damaged(self, reason: str) -> InputError:
        return InputError(f"{self._witnessed}: is damaged: {reason}; {self._remedy}")


def _record(length: int, sha256: str) -> bytes:
    text = f'{{"bytes":{length},"sha256":"{sha256}","check":"'
    check = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f'{text}{check}"}}\n'.ljust(_WIDTH).encode()
