"""Answers that are programs: run, with the problem's tests behind them, in a child process that can do little harm.

The child is a bare interpreter (no packages, nothing of our environment) in an empty folder that is thrown away. Before
it reads a word of the answer it limits its own time, memory and files, may start no further process unless it is
root's, and leaves the network where the kernel lets a user do so. That guards against endless loops, full disks and
accidents. It is no jail: the child may read what its user may read, and code that means to cheat can find out what to
say. Run the programs of strangers in a container.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from r2v.errors import EnvironmentFault
from r2v.hrl.tasks.problems import Problem
from r2v.randomness import digest

SECONDS, MEMORY, FILE = 5, 512 << 20, 1 << 20
"""Seconds of CPU (twice as many by the clock), bytes of memory, bytes a file."""
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_CHILD = """
import ctypes, os, resource
libc = ctypes.CDLL(None)
libc.prctl(1, 9)  # die with the parent
libc.unshare(0x10000000 | 0x40000000)  # a user and a network of its own
for kind, most in (("CPU", {seconds}), ("AS", {memory}), ("FSIZE", {file}), ("CORE", 0), ("NOFILE", 64), ("NPROC", 1)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (most, most))
def judge(code, tests, verdict, write, leave, place):
    names = {{"__name__": "__main__"}}
    exec(compile(code, "answer", "exec"), names)
    exec(compile(tests, "tests", "exec"), names)
    write(place, verdict)
    leave(0)
judge({code!r}, {tests!r}, {verdict!r}, os.write, os._exit, {place})
"""


def program(problem: Problem, said: str) -> float:
    """1 where the code said (the last fenced block, or all of it) passes the problem's tests; 0 where it raised, was
    cut off, or left before the tests were through. Raises EnvironmentFault where no process can be started."""
    blocks = _BLOCK.findall(said)
    code = blocks[-1] if blocks else said
    verdict = digest("program", problem.id, code)
    with tempfile.TemporaryDirectory(prefix="r2v-program-") as folder, tempfile.TemporaryFile() as file:
        source = _CHILD.format(
            seconds=SECONDS,
            memory=MEMORY,
            file=FILE,
            code=code,
            tests=problem.answer,
            verdict=verdict,
            place=file.fileno(),
        )
        _run(source, folder, file.fileno())
        file.seek(0)
        return float(file.read(len(verdict) + 1) == verdict)


def _run(source: str, folder: str, verdict: int) -> None:
    """Run a source to its end or its limit."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder},
            start_new_session=True,
            pass_fds=(verdict,),
        )
    except OSError as error:
        raise EnvironmentFault(
            f"the program checker cannot start a process ({error}); free memory or processes and "
            "run the same command again"
        ) from error
    with child:
        with suppress(subprocess.TimeoutExpired):
            child.communicate(source.encode("utf-8", "replace"), timeout=2 * SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
