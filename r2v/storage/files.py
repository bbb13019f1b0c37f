"""Atomic file I/O and content hashes.

A file is written under a temporary name in its folder, synced and renamed, so a reader sees the old content or the new,
never a part. `content_sha256` ignores the keys that record time and place, so that fingerprints built on it depend on
no clock and no run id.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from r2v.errors import UNSTEADY, EnvironmentFault, FileSystemFault, InputError
from r2v.storage.compression import LINES, lines_of, packed
from r2v.storage.file_system import free_space, sync_folder

VOLATILE = ("run_id", "wall_time_seconds", "created_at", "reply_id")
"""Keys of a JSON line, its `metadata` or its `steps` that record time, place or a provider's reply id: not content."""

_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "run_id": str,
    "wall_time_seconds": (int, float),
    "created_at": str,
    "reply_id": str,
}
_KEYS = tuple(f'"{name}":'.encode() for name in VOLATILE)


def content_sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's content: of JSON Lines, packed or not, with volatile values as null; of any
    other file its bytes. Raise FileNotFoundError."""
    if path.name.endswith(LINES):
        content = hashlib.sha256()
        with suppress(InputError):  # a damaged packed file is hashed by its bytes, so that it differs from the record
            for line in lines_of(path):
                content.update(_without_volatile(line))
            return content.hexdigest()
    return file_sha256(path)


def file_sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes. Raise OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_volatile(line: bytes) -> bytes:
    """Return the line with null for every volatile value."""
    if all(line.count(key) == line.count(key + b"null") for key in _KEYS):
        return line
    try:
        record = json.loads(line)
    except ValueError:  # damage counts as content
        return line
    steps = record.get("steps") if isinstance(record, dict) else None
    parts = (record, record.get("metadata"), *(steps if isinstance(steps, list) else ()))
    for owner in parts if isinstance(record, dict) else ():
        if isinstance(owner, dict):
            owner.update(dict.fromkeys(name for name in owner.keys() & set(VOLATILE) if _honest(name, owner[name])))
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _honest(name: str, value: Any) -> bool:
    """True if a volatile value has its key's type: any other type is damage, which counts as content."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return value is None or (isinstance(value, _TYPES[name]) and not isinstance(value, bool))


def write_text(path: Path, text: str) -> None:
    """Replace the file's content by `text`, atomically. Raise EnvironmentFault if the disk refuses."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, obj: Any) -> None:
    """Replace the file's content by `json_text(obj)`, atomically."""
    write_text(path, json_text(obj))


def json_text(obj: Any) -> str:
    """Return `obj` as indented JSON, keys in the order given. Raise ValueError for NaN and infinities."""
    return json.dumps(obj, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Replace the file's content by these lines, streaming, each with a newline added, packed if its name ends in
    `.zst`; return their number."""
    count = 0
    with replacing(path) as file, packed(path, file) as out:
        for line in lines:
            out.write(line.encode() + b"\n")
            count += 1
    return count


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces `path` if the block succeeds and is removed if it raises.

    Parent folders are made. Raise EnvironmentFault if the disk refuses; the old content stays.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with writing(path, draft):
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):  # the folder itself may not exist
            draft.unlink(missing_ok=True)


def remove_drafts(*paths: Path) -> None:
    """Remove the drafts that killed writers of these files left. Only the sole writer of the files may call this."""
    for path in paths:
        for draft in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            if _DRAFT.fullmatch(draft.name):
                draft.unlink(missing_ok=True)


def remove_all_drafts(folder: Path) -> None:
    """Remove the drafts of every file below a folder, except in hidden folders."""
    for inner, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in filter(_DRAFT.fullmatch, names):
            Path(inner, name).unlink(missing_ok=True)


@contextmanager
def writing(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Raise EnvironmentFault for an OSError of a write (disk full, quota, no permission), FileSystemFault for a
    transient one. For a full disk the message gives the size of `draft`, or `path`, and the free space."""
    try:
        yield
    except OSError as error:
        if error.errno in UNSTEADY:
            raise FileSystemFault.of(error) from error
        reason = str(error.strerror or error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason += f" after {_size(draft or path)}, {free_space(path)}"
        raise EnvironmentFault(
            f"cannot write {path}: {reason}; what was there is kept; make "
            "room or mend the permissions, then run the same command again"
        ) from error


def append_whole(descriptor: int, content: bytes) -> None:
    """Append all of `content` or nothing to a file with one writer. Raise OSError."""
    before = os.fstat(descriptor).st_size
    written = 0
    try:
        while written < len(content):  # a nearly full disk accepts a part first and raises on the rest
            written += os.pwrite(descriptor, content[written:], before + written)
    except OSError:  # leave no half line for the next reader
        os.ftruncate(descriptor, before)
        raise


def _size(path: Path) -> str:
    with suppress(OSError):
        size = path.stat().st_size
        return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
    return "0 KiB"
