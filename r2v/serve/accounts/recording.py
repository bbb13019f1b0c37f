"""Recorded sessions: the requests and replies of each session as they went over the wire.

    data/served/<name>/sessions/<digest of the session's name>.jsonl.zst

Each line is a zstd frame of its own. A frame that a kill has torn is cut off before the next is written, because
nothing behind it could be read. They hold prompts: the folder has mode 0700 and the files 0600.
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


class Recorder:
    """Writer of the recorded sessions below a server's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / SESSIONS
        self._packer = zstandard.ZstdCompressor(level=1)
        self._mended: set[Path] = set()

    def write(self, session: str, row: dict[str, Any], request: bytes, reply: bytes) -> None:
        """Append a turn. request and reply: plain bodies. Raises EnvironmentFault if the disk refuses."""
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
        """Cut off the frame that an earlier process was killed in. A file damaged otherwise is left as it is."""
        if path in self._mended:
            return
        try:
            for _ in lines_of(path) if path.exists() else ():
                pass
        except CutShort as torn:
            logger.warning("%s: cut off its last turn, in which a server was killed", path)
            os.truncate(path, torn.whole)
        except InputError as error:
            logger.warning("%s", error)
        if len(self._mended) == _REMEMBERED:
            self._mended.clear()
        self._mended.add(path)


def session_path(folder: Path, session: str) -> Path:
    """Return the file of a session; names come from clients and are no file names."""
    return folder / SESSIONS / f"{hashlib.blake2b(session.encode(), digest_size=12).hexdigest()}.jsonl.zst"


def _text(name: str, content: bytes) -> dict[str, str]:
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
