"""Hash cache: the content hash of a file, computed again only where the file may have changed.

    current_sha256(path) == recorded        # what every reader of an artifact asks

A hash is remembered under the file's device, inode, size, mtime and ctime, all to the nanosecond: who writes into a
file, replaces it or sets its mtime back changes at least the ctime. In memory all hashes are kept, so that a command
reads each file once. On disk only those of files from LARGE bytes on: they are what would cost seconds in each command
and in each of a training's ranks, while a smaller file is read faster than a lookup is worth trusting. A bit that
rots on the disk changes none of the five; `make` anew or a copy finds it, and so does a machine with another cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from r2v.errors import R2VError
from r2v.storage.files import content_sha256, write_text

LARGE = 64 << 20
"""Bytes from which on a hash is kept on disk."""
SETTLED_NS = 2_000_000_000
"""Age from which on a file's times tell a later change: some file systems count in whole seconds."""

FileKey = tuple[int, int, int, int, int]
_known: dict[FileKey, str] = {}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def current_sha256(path: Path, *, anew: bool = False) -> str:
    """Hex SHA-256 of a file's content, as `content_sha256`; with `anew` whatever is remembered. Raises OSError."""
    key, begun = _key(path), time.time_ns()
    if not anew and (remembered := _known.get(key) or _on_disk(key)):
        _known[key] = remembered
        return remembered
    content = content_sha256(path)
    if key == _key(path) and begun - max(key[3:]) > SETTLED_NS:
        _known[key] = content
        _keep(key, content)
    return content


def cache_folder() -> Path:
    """Where hashes of large files are kept: XDG_CACHE_HOME/r2v/hashes, else ~/.cache/r2v/hashes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "r2v" / "hashes"


def _key(path: Path) -> FileKey:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _entry(key: FileKey) -> Path:
    return cache_folder() / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _on_disk(key: FileKey) -> str | None:
    """The hash that an earlier process computed. Whatever is no hash is as good as nothing."""
    if key[2] < LARGE:
        return None
    with suppress(OSError, ValueError, RuntimeError):
        text = _entry(key).read_text().strip()
        return text if _SHA256.fullmatch(text) else None
    return None


def _keep(key: FileKey, content: str) -> None:
    if key[2] >= LARGE:
        with suppress(R2VError, RuntimeError):  # a home that cannot be written costs time, and nothing else
            write_text(_entry(key), content + "\n")
