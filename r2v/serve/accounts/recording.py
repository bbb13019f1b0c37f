"""Recorded sessions: the requests and replies of each session as they went over the wire.

    data/served/<name>/sessions/<digest of the session's name>.jsonl.zst

Each line is a zstd frame of its own. A frame torn by a kill is cut off before the next is written, because nothing
after it could be read. The files hold prompts: the folder has mode 0700 and each file 0600.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import zstandard

from r2v.errors import InputError
from r2v.log import logger
from r2v.storage.compression import CutShort, lines_of
from r2v.storage.files import append_whole, writing
from r2v.storage.paths import SESSIONS

_REMEMBERED = 10_000
"""Files remembered as mended, so that each is read through only once."""


class Recorder:
    """Writer of recorded sessions below a server's folder."""

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
