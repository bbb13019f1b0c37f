"""A process in a sandbox: our `boot` behind bubblewrap's walls, or before them where the user has asked for that.

Without walls (`unsafe`) a process still has limits on itself, no variable of ours, and no network where the kernel lets
it leave that; but it may read, change and stop what its user may.
"""

from __future__ import annotations

import json
import marshal
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import IO, Any

from r2v.errors import EnvironmentFault
from r2v.sandbox import bubblewrap, seccomp
from r2v.sandbox.limits import Limits

_Stream = int | IO[bytes] | None


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What a process is to do, and with what rights."""

    modules: tuple[str, ...]
    """Modules of this package that it runs, each after those that it imports; the last one's `main` is called."""
    data: dict[str, Any]
    """What `main` is called with; JSON."""
    limits: Limits = Limits()
    readable: tuple[Path, ...] = ()
    """Paths that it may read besides the system."""
    keep: tuple[int, ...] = ()
    """Descriptors of ours that it inherits."""
    watched: bool = False
    """Whether it is a watcher itself, which counts beside the processes that the limit is for."""
    traceable: bool = True
    """Whether a process of the same user may look into it."""
    unsafe: bool = False
    """Without walls."""
    folder: Path = Path("/")
    """Its working directory, where it has no walls."""


def require(unsafe: bool) -> None:
    """Raises EnvironmentFault, in one line with the remedy, where there can be no sandbox and one is asked for."""
    if not unsafe and (reason := bubblewrap.lacking()):
        raise EnvironmentFault(
            f"code that a model wrote runs in a sandbox, and {reason}; or accept with --unsafe that it may read, "
            "change and stop what you may"
        )


def start(orders: Orders, *, stdin: _Stream, stdout: _Stream, stderr: _Stream) -> subprocess.Popen[bytes]:
    """Start a process, the leader of a session of its own. Raises EnvironmentFault where none can be started."""
    require(orders.unsafe)
    uid = None if orders.unsafe else bubblewrap.fresh_uid()
    with ExitStack() as opened:
        content = json.dumps(
            {
                "unsafe": orders.unsafe,
                "limits": _rlimits(orders),
                "uid": uid,
                "traceable": orders.traceable,
                "modules": {name: _compiled(name) for name in orders.modules},
                "main": orders.modules[-1],
                "data": orders.data,
            }
        )
        order_file = opened.enter_context(bubblewrap.descriptor_of(content.encode()))
        boot = ["-I", "-S", "-c", _source("r2v.sandbox.boot"), str(order_file.fileno())]
        inherited = [order_file.fileno(), *orders.keep]
        if orders.unsafe:
            command = [sys.executable, *boot]
        else:
            filter_file = opened.enter_context(bubblewrap.descriptor_of(seccomp.program(os.uname().machine)))
            inherited.append(filter_file.fileno())
            walls = bubblewrap.walls(orders.limits, orders.readable, filter_file.fileno())
            command = [*walls, "--", bubblewrap.python(), *boot]
        try:
            return subprocess.Popen(
                command,
                executable=None if orders.unsafe else shutil.which("bwrap"),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=orders.folder,
                env={"PATH": os.defpath, "HOME": str(orders.folder)} if orders.unsafe else {},
                start_new_session=True,
                pass_fds=inherited,
            )
        except OSError as error:
            raise EnvironmentFault(
                f"the sandbox cannot start a process ({error}); free memory or processes and run the same command again"
            ) from error


def pipe(opened: ExitStack) -> tuple[FileIO, FileIO]:
    """The ends of a new pipe, to read and to write. Each closes with the block, if not earlier."""
    reading, writing = os.pipe()
    return opened.enter_context(FileIO(reading, "rb")), opened.enter_context(FileIO(writing, "wb"))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started, and wait for it. Behind walls nothing survives its first process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _rlimits(orders: Orders) -> dict[str, int]:
    """Values of setrlimit. Bubblewrap's own process counts where it has the user's number."""
    limits = orders.limits
    watchers = int(orders.watched) + int(not orders.unsafe and not bubblewrap.as_root())
    return {
        "CPU": limits.cpu_seconds,
        "AS": limits.memory,
        "FSIZE": limits.file_bytes,
        "CORE": 0,
        "NOFILE": limits.open_files,
        "NPROC": limits.processes + watchers,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }


@cache
def _compiled(name: str) -> str:
    """The code of a module of this package, for the same interpreter."""
    return b64encode(marshal.dumps(compile(_source(name), name, "exec", dont_inherit=True))).decode()


@cache
def _source(name: str) -> str:
    """The source of a module of this package, as it was when it was first needed."""
    return Path(__file__).with_name(f"{name.rpartition('.')[2]}.py").read_text()
