"""A Python whose heavy libraries are imported already: seven CPU seconds less for each process that a test starts.

`python()` replaces `sys.executable`. One server a suite imports torch, transformers and the like, and forks for each
command; a second one, forked from it, has imported this checkout's R2V as well, and serves the commands that would
import it. A small client stands in for the process: it hands on arguments, folder, environment, limits and open files,
passes signals on, and ends as the process ends. Killed itself, it takes the process along. The workers of the suite are
such forks too (`worker_python`). Tests of imports and of PYTHON* variables, and all jobs under Slurm, start a real
interpreter.
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
SERVER = "R2V_WARM_SERVER"
"""Variable that names the checkout and the folder of the suite's server to the suite's workers."""


@cache
def own_folder() -> Path:
    """Return the folder of this process's clients and of the CPU costs of their processes."""
    folder = Path(tempfile.mkdtemp(prefix="r2v-warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def start_server() -> Path:
    """Return the folder of the server's sockets. The server belongs to the suite, or ends with this process."""
    root, _, folder = os.environ.get(SERVER, "").rpartition("=")
    if root == str(ROOT):
        return Path(folder)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"OMP_NUM_THREADS": "1"}  # libraries read it when they are imported, which is here and not in the forks
    server = subprocess.Popen(
        [sys.executable, "-P", HERE / "server.py", own_folder(), ROOT],
        env=clean,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdin is not None  # the server ends when this pipe closes, however this process ends
    return own_folder()


@cache
def client(name: str, executable: str = "") -> str:
    """Return an executable that stands in for Python; `executable` is its process's `sys.executable`, by default
    itself."""
    path, forks = own_folder() / name, own_folder() / "forks"
    forks.mkdir(exist_ok=True)
    values = {"SERVER": start_server(), "REAL": sys.executable, "ROOT": ROOT, "COSTS": own_folder() / "costs"}
    values |= {"FORKS": forks}
    text = (HERE / "client.py").read_text()
    for constant, value in {**values, "EXECUTABLE": executable or path}.items():
        text = text.replace(f'"<{constant}>"', repr(str(value)))
    path.write_text(f"#!{sys.executable} -IS\n{text}")
    path.chmod(0o755)
    return str(path)


def python() -> str:
    """Return the executable of a Python that starts at once, and whose children do."""
    return client("python")


def login_python() -> str:
    """Return the executable of a Python that starts at once, and whose children are real interpreters, as the submitted
    jobs of a command are."""
    return client("login", sys.executable)


def fork_of(process: subprocess.Popen[str]) -> int:
    """Return the id of the running process behind a client."""
    return int((own_folder() / "forks" / str(process.pid)).read_text())


def worker_python() -> str:
    """Return the executable of a worker of the suite, whose `sys.executable` is the real one."""
    os.environ[SERVER] = f"{ROOT}={start_server()}"
    return client("worker", sys.executable)


def start(folder: Path, *words: str, env: Mapping[str, str | None] = {}) -> subprocess.Popen[str]:
    """Start `python -m r2v *words` in a folder. `env` is added to this process's; None removes a variable."""
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
    """Run `python -m r2v *words` to its end."""
    process = start(folder, *words, env=env)
    out, err = process.communicate()
    return subprocess.CompletedProcess(["r2v", *words], process.returncode, out, err)


def cpu_seconds() -> float:
    """Return the CPU time of the ended processes behind this process's clients."""
    costs = own_folder() / "costs"
    return sum(map(float, costs.read_text().split())) if costs.exists() else 0.0
