"""Recorded sessions: the requests and replies of each session as they went over the wire.

    data/served/<name>/sessions/<digest of the session's name>.jsonl.zst

Each line is a frame of its own, so that a kill costs at most the last one. They hold prompts: the folder has mode 0700
and the files 0600.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import zstandard

from r2v.storage.files import append_whole, writing

SESSIONS = "sessions"


class Recorder:
    """Writer of the recorded sessions below a server's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / SESSIONS
        self._packer = zstandard.ZstdCompressor(level=1)

    def write(self, session: str, row: dict[str, Any], request: bytes, reply: bytes) -> None:
        """Append a turn. request and reply: plain bodies. Raises EnvironmentFault if the disk refuses."""
        line = json.dumps({**row, **_text("request", request), **_text("reply", reply)}, ensure_ascii=False).encode()
        path = session_path(self._folder.parent, session)
        with writing(path):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                append_whole(descriptor, self._packer.compress(line + b"\n"))  # half a frame would hide all that follow
            finally:
                os.close(descriptor)


def session_path(folder: Path, session: str) -> Path:
    """Return the file of a session; names come from clients and are no file names."""
    return folder / SESSIONS / f"{hashlib.blake2b(session.encode(), digest_size=12).hexdigest()}.jsonl.zst"


def _text(name: str, content: bytes) -> dict[str, str]:
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
