"""Launcher of the engine's server: kills the server and all its workers once R2V is gone.

    PYTHON launcher.py PARENT_PID SCRATCH -m vllm.entrypoints.openai.api_server ...

It runs in the engine's own Python and imports only the standard library and, to remove the scratch folder,
`r2v.storage.removal`, which needs nothing else either. Two processes watch each other: the launcher, whose parent is
R2V, and the leader, whose child is the server. The leader's process group holds the server and its workers. When R2V
dies, even by kill -9, the launcher gets another parent: it kills the group and removes the scratch folder. When the
launcher dies, the pipe between the two closes, and the leader kills its own group; when the leader dies, the launcher
kills the group. In each case every process is gone within half a second.
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
"""Seconds between checks of the parent and the server."""
_PR_SET_PDEATHSIG = 1
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(parent: int, scratch: str, words: list[str]) -> int:
    """Run `python WORDS` until it ends, the parent is gone or a stop signal arrives. Return its exit code."""
    stop, created = False, os.lstat(scratch)

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
        for kill in (os.killpg, os.kill):  # the group holds the workers; before setsid there is only the process
            with contextlib.suppress(ProcessLookupError):
                kill(leader, signal.SIGKILL)
        if not ended:
            _, status = os.waitpid(leader, 0)
        if os.getppid() != parent:  # R2V can no longer read the log or remove the folder
            _remove(Path(scratch), created)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _remove(scratch: Path, created: os.stat_result) -> None:
    """Remove R2V's scratch folder, if it is still the one that existed at the start."""
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # R2V is not installed in the engine's environment
    from r2v.storage.removal import TEMPORARY, NotOurs, adopt_temporary, remove_own

    with contextlib.suppress(NotOurs):
        remove_own(adopt_temporary(scratch, created), TEMPORARY)


def _lead(launcher: int, words: list[str]) -> int:
    """Run the server in its own process group until it ends or the launcher's pipe closes. Return its exit code."""
    os.setsid()
    server = subprocess.Popen([sys.executable, *words], preexec_fn=_die_with_parent)
    while (code := server.poll()) is None:
        if select.select([launcher], [], [], _EVERY)[0]:
            os.killpg(0, signal.SIGKILL)  # this process too
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    """Have Linux kill the server as soon as its leader dies, so that it never serves without one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
