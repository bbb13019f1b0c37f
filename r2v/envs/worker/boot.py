"""Program of a worker: a guard process and its child, which runs the world.

    PYTHON boot.py REQUESTS ANSWERS OWNER SCRATCH        # three pipe descriptors and a folder

It imports only the standard library and, at its end, `r2v.storage.removal`, which does the same, so any interpreter
from Python 3.11 on can run it. The guard is the subreaper of all processes that the world starts, also of those that
left its process group (a browser does). When the world ends, or the owner of the pipe's other end ends, even by
kill -9, the guard kills every descendant, removes the scratch folder and ends. If the guard is killed, the kernel kills
the world, a browser that loses its world ends itself, and the owner kills the rest later (r2v.envs.worker.process).

Frames in both directions are a length of four bytes and JSON. The world's prints go to standard output, apart from the
frames.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK = 1.0
"""Seconds between checks of the parent, in case a surviving process inherited the owner's end of the pipe."""


def main(requests: int, answers: int, owner_pipe: int, scratch: str) -> int:
    """Guard a world until it or its owner ends, and return the world's exit code."""
    parent, guard, scratch_stat = os.getppid(), os.getpid(), os.lstat(scratch)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    world = os.fork()
    if world == 0:
        os.close(owner_pipe)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        if os.getppid() != guard:
            os._exit(1)
        os._exit(_work(requests, answers))
    os.close(requests)
    os.close(answers)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    code = _watch(world, parent, owner_pipe, woken)
    _end_descendants(world)
    _remove(Path(scratch), scratch_stat)
    return code


def _remove(scratch: Path, scratch_stat: os.stat_result) -> None:
    """Remove the scratch folder if it is still the one present at the start."""
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # R2V is not installed in every interpreter
    from r2v.storage.removal import TEMPORARY, NotOurs, adopt_temporary, remove_own

    with contextlib.suppress(NotOurs):
        remove_own(adopt_temporary(scratch, scratch_stat), TEMPORARY)


def _watch(world: int, parent: int, owner_pipe: int, woken: int) -> int:
    """Wait for the end of the world, the owner or the parent, or a signal; return an ended world's exit code, else
    0."""
    while os.getppid() == parent:
        ready, _, _ = select.select([owner_pipe, woken], [], [], _LOOK)
        signalled = woken in ready and any(number != signal.SIGCHLD for number in os.read(woken, 512))
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG):
                if ended[0] == world:
                    return os.waitstatus_to_exitcode(ended[1]) & 0xFF
                if not ended[0]:
                    break
        if signalled or owner_pipe in ready:
            return 0
    return 0


def _end_descendants(world: int) -> None:
    """Kill the world's process group and all descendants of this process until none is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(world, signal.SIGKILL)
    while True:
        for process in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _descendants(root: int) -> list[int]:
    """Return the processes below `root`, read from /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            ancestor = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(ancestor, []).append(int(stat.parent.name))
    descendants, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        descendants += below
        waiting += below
    return descendants


def _work(requests: int, answers: int) -> int:
    """Create the world named by the first frame and answer calls of its methods until the requests end."""
    order = _receive(requests)
    if order is None:
        return 0
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]
    sys.path.extend(order["search"])
    world = None
    while order is not None:
        try:
            if world is None:
                module, _, name = order["world"].partition(":")
                world = getattr(importlib.import_module(module), name)(**order["options"])
                answer: Any = {"process": os.getpid()}
            else:
                answer = getattr(world, order["method"])(**order["arguments"])
            body = json.dumps({"answer": answer}, allow_nan=False)
        except Exception as error:
            body = json.dumps({"raised": _described(error)})
        _send(answers, body.encode("utf-8", "surrogatepass"))
        if world is None:
            return 1
        order = _receive(requests)
    return 0


def _described(error: Exception) -> str:
    """Return an exception as one line: the first line of its text, and the place in the world's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and "site-packages" not in frame.filename]
    position = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    first = str(error).strip().split("\n")[0]
    return " ".join(f"{type(error).__name__}: {first}".split())[:400] + position


def _receive(file: int) -> Any:
    """Return the next frame, None at the end."""
    if len(head := _read(file, 4)) < 4:
        return None
    return json.loads(_read(file, struct.unpack(">I", head)[0]))


def _read(file: int, size: int) -> bytes:
    parts = []
    while size and (part := os.read(file, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(file: int, body: bytes) -> None:
    view = memoryview(struct.pack(">I", len(body)) + body)
    while view:
        view = view[os.write(file, view) :]


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
