"""`python -m r2v` without the seven CPU seconds of imports: processes forked from a server that holds the libraries.

They are processes like any others: with a folder, an environment, a standard output and error of their own, killed
and told to stop by signals, and R2V itself is imported anew in each. Only torch and its like are there already. Tests
of the imports themselves, of what starts Python by a shell, and of ranks, start real interpreters instead.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from types import TracebackType
from typing import IO

ROOT = Path(__file__).parents[1]
LIBRARIES = [
    "torch",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "peft",
    "trl",
    "accelerate",
    "openai",
    "anthropic",
    "sklearn.linear_model",
]


class Process:
    """What `subprocess.Popen` is of `python -m r2v *words`. `out` and `err` are what was written so far.

    `env` is laid over this process's environment; None takes a variable away.
    """

    def __init__(self, folder: Path, *words: str, env: Mapping[str, str | None] = {}) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LIBRARIES)
        self._outputs = tempfile.TemporaryDirectory(prefix="r2v-process-")
        outputs = (f"{self._outputs.name}/out", f"{self._outputs.name}/err")
        places = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
        environment = {name: value for name, value in places.items() if value is not None}
        self._process = context.Process(target=_act, args=(str(folder), ["r2v", *words], environment, outputs))
        self._process.start()
        self.pid = self._process.pid

    @property
    def out(self) -> str:
        return Path(self._outputs.name, "out").read_text()

    @property
    def err(self) -> str:
        return Path(self._outputs.name, "err").read_text()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("r2v", timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All of its output and error, once it has ended."""
        self.wait(timeout)
        return self.out, self.err

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None and self.pid:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()


def run(folder: Path, *words: str, env: Mapping[str, str | None] = {}) -> subprocess.CompletedProcess[str]:
    """Type a command and wait for it, as `subprocess.run(capture_output=True, text=True)`."""
    process = Process(folder, *words, env=env)
    out, err = process.communicate()
    return subprocess.CompletedProcess(["r2v", *words], process.wait(), out, err)


def cpu_seconds() -> float:
    """CPU time of the server and of its processes that have ended."""
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    path = Path(f"/proc/{pid}/stat")
    if pid is None or not path.exists():
        return 0.0
    fields = path.read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _act(folder: str, argv: list[str], environment: dict[str, str], outputs: tuple[str, str]) -> None:
    """In the process itself: take its place in the world and be `python -m r2v`."""
    for stream, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        *((i, p, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for i, p in enumerate(outputs, 1)),
    ):
        opened = os.open(path, mode)
        os.dup2(opened, stream)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = [str(ROOT), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.argv[:] = argv
    code = 0
    try:
        runpy.run_module("r2v", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    os._exit(code)


def _flush(stream: IO[str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.flush()
