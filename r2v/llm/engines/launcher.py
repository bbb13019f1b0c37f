"""The launcher: starts the engine's server beside it, and ends it with everything it started once its parent is gone.

    PYTHON launcher.py PARENT_PID SCRATCH -m vllm.entrypoints.openai.api_server ...

It runs in the engine's own Python and imports nothing but the standard library. The server and its workers are one
process group of their own. When the parent dies, by kill -9 too, the launcher's parent is another process: the group is
killed and the scratch folder removed, within half a second. The other way round, the server dies with the launcher
(Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

_EVERY = 0.2
_PR_SET_PDEATHSIG = 1


def _die_with_launcher() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(parent: int, scratch: str, words: list[str]) -> int:
    """Run `python WORDS` until it ends, the parent is gone, or a signal asks to stop; its exit code."""
    stop = False

    def ask_to_stop(number: int, frame: object) -> None:
        nonlocal stop
        stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask_to_stop)
    server = subprocess.Popen([sys.executable, *words], start_new_session=True, preexec_fn=_die_with_launcher)
    try:
        while server.poll() is None and os.getppid() == parent and not stop:
            time.sleep(_EVERY)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its workers too, where it died alone
        code = server.wait()
        if os.getppid() != parent:  # nobody is left to read the log, or to remove it
            shutil.rmtree(scratch, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
