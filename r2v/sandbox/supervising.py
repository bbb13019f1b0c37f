"""Supervisor inside a sandbox, which runs a command, ends its remaining processes and returns its files.

The files are read once no other process is left, without following links, so that nothing can change them meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

from r2v.sandbox.working_folder import pack, unpack


def main(data: dict[str, Any]) -> None:
    """Lay out `data["folder"]` and `data["files"]`, run `data["command"]`, and write its status, `data["wanted"]` and
    the folder, if one was given, to the descriptor `data["result"]` as JSON."""
    result = os.fdopen(data["result"], "w")
    result.write("\n")
    result.flush()
    if data["folder"] is not None:
        unpack(b64decode(data["folder"]), "/")
    for name, content in data["files"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b64decode(content))
    try:
        child = subprocess.Popen(data["command"])
        status = child.wait()
    except OSError as error:
        os.write(2, f"{data['command'][0]}: {error.strerror}\n".encode(errors="replace"))
        status = 127
    _end_the_others(data["outside"])
    files = {name: content for name in data["wanted"] if (content := _content(name, data["most"])) is not None}
    folder = None if data["folder"] is None else b64encode(pack("/", ("home", "tmp"))).decode()
    with result:
        json.dump({"status": status, "files": files, "folder": folder, "user": os.getuid()}, result)
    os._exit(0)


def _end_the_others(outside: str) -> None:
    """Kill all remaining processes, unless in the caller's process namespace, where these would be all of the
    user's."""
    if str(Path("/proc/self/ns/pid").readlink()) != outside:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _content(name: str, most: int) -> str | None:
    """Return a regular file's content in base64; None if it is missing, too long, a link or behind one."""
    *folders, last = Path(name).parts
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    at = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        with os.fdopen(os.open(last, flags, dir_fd=at), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            content = file.read(most + 1)
    except OSError:
        return None
    finally:
        os.close(at)
    return None if len(content) > most else b64encode(content).decode()
