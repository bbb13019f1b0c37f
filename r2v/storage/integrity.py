"""Integrity: hashes of an artifact's files, compared with its manifest at every read.

A hash is cached under the file's device, inode, size, mtime and ctime in nanoseconds: writing a file, replacing it or
setting its mtime back changes at least the ctime. Memory caches every hash, so that a command reads each file once. The
disk caches hashes of files of LARGE bytes or more, which would cost seconds in each command on a login node and in each
rank of a training. Bit rot changes none of the five; making the artifact again, copying it, or a machine with another
cache detects it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.errors import InputError, R2VError
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, Damaged, json_sha256
from r2v.storage.artifact_manifest import hashed as hashed
from r2v.storage.file_system import steadily, walk
from r2v.storage.files import content_sha256, write_text, writing

LARGE = 64 << 20
"""Smallest size in bytes of a file whose hash is cached on disk."""
SETTLED_NS = 2_000_000_000
"""Age in ns after which a change shows in a file's times: some file systems count in whole seconds."""

FileKey = tuple[int, int, int, int, int]
_hashes: dict[FileKey, str] = {}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def current_sha256(path: Path, *, anew: bool = False) -> str:
    """Return `content_sha256` of a file, from the cache unless `anew`. Raise OSError."""
    key, begun = _key(path), time.time_ns()
    if not anew and (remembered := _hashes.get(key) or _on_disk(key)):
        _hashes[key] = remembered
        return remembered
    content = steadily(lambda: content_sha256(path))
    if key == _key(path) and begun - max(key[3:]) > SETTLED_NS:  # not changed while it was read
        _hashes[key] = content
        _keep(key, content)
    return content


def cache_folder() -> Path:
    """Return the folder of cached hashes: XDG_CACHE_HOME/r2v/hashes, else ~/.cache/r2v/hashes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "r2v" / "hashes"


def _key(path: Path) -> FileKey:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _entry(key: FileKey) -> Path:
    return cache_folder() / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _on_disk(key: FileKey) -> str | None:
    """Return the hash cached by an earlier process, or None."""
    if key[2] < LARGE:
        return None
    with suppress(OSError, ValueError, RuntimeError):
        text = _entry(key).read_text().strip()
        return text if _SHA256.fullmatch(text) else None
    return None


def _keep(key: FileKey, content: str) -> None:
    if key[2] >= LARGE:
        with suppress(R2VError, RuntimeError):  # a read-only home costs time, and nothing else
            write_text(_entry(key), content + "\n")


CONFIGURATION = "config.yaml"
EXTERNAL = "external"
_NOT_CONTENT = ("checkpoint-", "tmp", ".")
_NOT_CONTENT_SUFFIXES = (".meta.json", ".lease", ".quarantine")


class Stray(Damaged):
    """An artifact contains a file that its manifest does not name; all named files are whole."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Finished result of a stage. `files`: relative path of each content file -> its SHA-256."""

    stage: str
    fingerprint: str
    folder: Path
    files: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Files outside the folder that belong to it, such as the trajectories of collected runs: path -> SHA-256."""
    labels: bool = False
    """True if the names in `files` are labels of the files in `elsewhere`, not files."""

    @property
    def data_sha256(self) -> str:
        """Hash over all content, equal on every machine for the same content."""
        return json_sha256(sorted(self.files.items()))

    @property
    def recorded(self) -> dict[Path, str]:
        """Path of every file -> SHA-256 at the time it was made."""
        own = {} if self.labels else {self.folder / name: content for name, content in self.files.items()}
        return own | {Path(path): content for path, content in self.elsewhere.items()}

    def file(self, name: str) -> Path:
        """Return the path of a content file; a user's file serves for any name. Raise InputError if it is missing."""
        path = self.folder / (next(iter(self.files)) if self.stage == EXTERNAL else name)
        if not path.exists():
            raise InputError(f"{path}: missing from the artifact of {self.stage}; run that stage again")
        return path


def content_files(folder: Path) -> dict[str, str]:
    """Return the hashes of the content files below a folder by relative path, without checkpoints and metadata."""
    return {name: content_sha256(folder / name) for name in _content_names(folder)}


def _content_names(folder: Path) -> list[str]:
    names = []
    for path in sorted(walk(folder)):
        relative = path.relative_to(folder)
        if path.name in (ARTIFACT_MANIFEST, CONFIGURATION) or not path.is_file():
            continue
        if not any(p.startswith(_NOT_CONTENT) or p.endswith(_NOT_CONTENT_SUFFIXES) for p in relative.parts):
            names.append(relative.as_posix())
    return names


def verify(artifact: Artifact) -> None:
    """Hash every file of an artifact. Raise Damaged for the first that differs from the record."""
    for path, recorded in artifact.recorded.items():
        verify_file(path, recorded)
    if artifact.labels or artifact.stage == EXTERNAL:
        return
    for name in _content_names(artifact.folder):
        if name not in artifact.files:
            raise Stray(artifact.folder / name, f"{artifact.folder / ARTIFACT_MANIFEST} does not name it; move it away")


def verify_file(path: Path, recorded: str, record: str = ARTIFACT_MANIFEST) -> None:
    """Hash one file. Raise Damaged if it is missing or differs from the hash `recorded` in the file named `record`."""
    try:
        # A mismatch is confirmed by reading the file: the cached hash itself may be damaged.
        if current_sha256(path) != recorded and (now := current_sha256(path, anew=True)) != recorded:
            raise Damaged(path, f"its content is {now[:12]}, {record} says {recorded[:12]}")
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(path, f"it is gone, {record} says {recorded[:12]}") from None
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror}), {record} says {recorded[:12]}") from None


def read_hashed(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file without its hash; a file that people edit needs none. Raise FileNotFoundError,
    and Damaged if the content differs from the hash."""
    try:
        record = json.loads(steadily(lambda: path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"it is no JSON ({error})") from None
    if not isinstance(record, dict):
        raise Damaged(path, f"it holds a {type(record).__name__}, not an object")
    recorded = record.pop("sha256", None)
    if recorded is not None and (now := json_sha256(record)) != recorded:
        raise Damaged(path, f"its content is {now[:12]}, it says {recorded!s:.12}")
    return record


def set_aside(path: Path) -> Path:
    """Rename a file to a unique name ending in .quarantine, which is never content, and return the new path."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.quarantine")
    with writing(path):
        path.rename(aside)
    return aside
