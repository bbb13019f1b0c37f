"""A Python whose heavy libraries are imported already: seven CPU seconds less for each process that a test starts.

`PYTHON` is typed where `sys.executable` would be. A server imports torch, transformers and the like once for each
worker of the suite and forks for each command; a small client stands in for the process: it hands on arguments,
folder, environment, limits and open files, passes signals on, and ends as the process ends. Killed itself, it takes the
process along. R2V is imported anew each time. Tests of what an import loads, of PYTHON* variables, and whatever runs
under Slurm start a real interpreter.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@cache
def start_server() -> tuple[Path, int]:
    """The executable that stands in for Python, and the server's process id; it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="r2v-warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    python, address = folder / "python", folder / "socket"
    client = (HERE / "client.py").read_text()
    for name, value in (("ADDRESS", str(address)), ("REAL", sys.executable)):
        client = client.replace(name, repr(value))
    python.write_text(f"#!{sys.executable} -IS\n{client}")
    python.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"OMP_NUM_THREADS": "1"}  # libraries read it when they are imported, which is here and not in the forks
    server = subprocess.Popen(
        [sys.executable, "-P", HERE / "server.py", address, python],
        env=clean,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdin is not None  # the server ends when this pipe closes, however this process ends
    return python, server.pid


def python() -> str:
    """What to type for a Python that starts at once."""
    return str(start_server()[0])


def start(folder: Path, *words: str, env: Mapping[str, str | None] = {}) -> subprocess.Popen[str]:
    """`python -m r2v *words` in a folder. `env` is laid over this process's; None takes a variable away."""
    laid = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.Popen(
        [python(), "-m", "r2v", *words],
        cwd=folder,
        env={name: value for name, value in laid.items() if value is not None},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(folder: Path, *words: str, env: Mapping[str, str | None] = {}) -> subprocess.CompletedProcess[str]:
    """The same, until it has ended."""
    process = start(folder, *words, env=env)
    out, err = process.communicate()
    return subprocess.CompletedProcess(["r2v", *words], process.returncode, out, err)


def cpu_seconds() -> float:
    """CPU time of the server and of its processes that have ended; 0 where there is none."""
    if not start_server.cache_info().currsize:
        return 0.0
    stat = Path(f"/proc/{start_server()[1]}/stat")
    fields = stat.read_text().rpartition(")")[2].split() if stat.exists() else []
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
