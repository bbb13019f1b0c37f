"""The launcher: starts the engine's server beside it, and ends it with everything it started once its parent is gone.

    PYTHON launcher.py PARENT_PID SCRATCH -m vllm.entrypoints.openai.api_server ...

It runs in the engine's own Python and imports nothing but the standard library and, where it removes the scratch
folder, `r2v.storage.removal`, which does so too. Two processes watch each other: the launcher, whose parent is R2V, and
the leader, whose child is the server. The leader's process group holds the server and its workers. When R2V dies, by
kill -9 too, the launcher's parent is another process: it kills the group and removes the scratch folder. When the
launcher dies so, the pipe between the two ends, and the leader kills its own group; when the leader does, the launcher
kills it. Either way all of it is gone within half a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_EVERY = 0.2
_PR_SET_PDEATHSIG = 1
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(parent: int, scratch: str, words: list[str]) -> int:
    """Run `python WORDS` until it ends, the parent is gone, or a signal asks to stop; its exit code."""
    stop, made = False, os.lstat(scratch)

    def ask_to_stop(number: int, frame: object) -> None:
        nonlocal stop
        stop = True

    ends, alive = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.close(alive)
        os._exit(_lead(ends, words))
    os.close(ends)
    for number in _ASKING:
        signal.signal(number, ask_to_stop)
    ended, status = 0, 0
    try:
        while not ended and os.getppid() == parent and not stop:
            time.sleep(_EVERY)
            ended, status = os.waitpid(leader, os.WNOHANG)
    finally:
        for kill in (os.killpg, os.kill):  # its workers too, where it died alone; one that is no group's leader yet
            with contextlib.suppress(ProcessLookupError):
                kill(leader, signal.SIGKILL)
        if not ended:
            _, status = os.waitpid(leader, 0)
        if os.getppid() != parent:  # nobody is left to read the log, or to remove it
            _remove(Path(scratch), made)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _remove(scratch: Path, made: os.stat_result) -> None:
    """Remove the folder that R2V made, if it is still the one that lay there at the start."""
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # R2V is not installed in the engine's environment
    from r2v.storage.removal import TEMPORARY, NotOurs, adopt_temporary, remove_own

    with contextlib.suppress(NotOurs):
        remove_own(adopt_temporary(scratch, made), TEMPORARY)


def _lead(launcher: int, words: list[str]) -> int:
    """Run the server in a process group of its own, until it ends or the pipe to the launcher does; its exit code."""
    os.setsid()
    server = subprocess.Popen([sys.executable, *words], preexec_fn=_die_with_parent)
    while (code := server.poll()) is None:
        if select.select([launcher], [], [], _EVERY)[0]:
            os.killpg(0, signal.SIGKILL)  # this process too
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    """A server whose leader is killed is, on Linux, gone at once: it never serves without one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
