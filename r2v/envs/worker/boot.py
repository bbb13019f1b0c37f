"""The worker's own program: a guard, and below it the process that runs the world.

    PYTHON boot.py REQUESTS ANSWERS LIFELINE SCRATCH        # three descriptors and a folder

It imports nothing but the standard library and, at its end, `r2v.storage.removal`, which does so too: any interpreter
from Python 3.11 on runs it. The guard is the subreaper of all that the world starts, also of what left its process
group (a browser does): when the world ends, or whoever holds the other end of the lifeline does, by kill -9 too, it
kills every descendant, removes the scratch folder and ends. When the guard is killed, the kernel kills the world, a
browser that loses its world ends itself, and the owner ends the rest when it next looks (r2v.envs.worker.process).

Frames in both directions are a length of four bytes and JSON. What the world prints goes to standard output, which is
nobody's answer.
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
"""Seconds between two looks at the parent, should the lifeline have been inherited by a process that lives on."""


def main(requests: int, answers: int, lifeline: int, scratch: str) -> int:
    """Guard a world until it ends or its lifeline does; the world's exit code."""
    parent, guard, made = os.getppid(), os.getpid(), os.lstat(scratch)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    world = os.fork()
    if world == 0:
        os.close(lifeline)
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
    code = _watch(world, parent, lifeline, woken)
    _end_descendants(world)
    _remove(Path(scratch), made)
    return code


def _remove(scratch: Path, made: os.stat_result) -> None:
    """Remove the folder that the owner made, if it is still the one that lay there at the start."""
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # R2V is not installed in every interpreter
    from r2v.storage.removal import TEMPORARY, NotOurs, adopt_temporary, remove_own

    with contextlib.suppress(NotOurs):
        remove_own(adopt_temporary(scratch, made), TEMPORARY)


def _watch(world: int, parent: int, lifeline: int, woken: int) -> int:
    """Wait for the world, the lifeline, the parent or a signal; the exit code of a world that ended, else 0."""
    while os.getppid() == parent:
        ready, _, _ = select.select([lifeline, woken], [], [], _LOOK)
        asked = woken in ready and any(number != signal.SIGCHLD for number in os.read(woken, 512))
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG):
                if ended[0] == world:
                    return os.waitstatus_to_exitcode(ended[1]) & 0xFF
                if not ended[0]:
                    break
        if asked or lifeline in ready:
            return 0
    return 0


def _end_descendants(world: int) -> None:
    """Kill the world's group, and every process that this one is an ancestor of, until there is none."""
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
    """Processes below `root`, by what /proc says now."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            ancestor = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(ancestor, []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _work(requests: int, answers: int) -> int:
    """Make the world that the first frame names and answer calls of its methods, until there are no more."""
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
    """An exception in a line, the first of what it says, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and "site-packages" not in frame.filename]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    first = str(error).strip().split("\n")[0]
    return " ".join(f"{type(error).__name__}: {first}".split())[:400] + place


def _receive(file: int) -> Any:
    """The next frame; None at the end."""
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
