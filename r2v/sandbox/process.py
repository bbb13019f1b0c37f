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
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
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
    mounted: Mapping[str, Path] = field(default_factory=dict)
    """Place inside -> path that it may read there."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic link inside -> what it leads to."""
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
    if not unsafe and (reason := lacking()):
        raise EnvironmentFault(
            f"code that a model wrote runs in a sandbox, and {reason}; or accept with "
            f"hierarchical.problems.unsafe=true that it may read, "
            "change and stop what you may"
        )


@cache
def lacking() -> str:
    """What stands against a sandbox on this machine, with the remedy; "" where there is one."""
    machine = os.uname().machine
    if machine not in seccomp.MACHINES:
        return f"there is no filter of system calls for {machine}, only for {', '.join(seccomp.MACHINES)}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed; install the package bubblewrap (in a checkout: make sandbox)"
    if bubblewrap.root_in_disguise():
        return (
            "this is root in a user namespace, whose code the kernel holds to no limit; run as root or as another user"
        )
    trial = _launch(
        Orders(modules=(), data={}), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    reason = " ".join(trial.communicate()[1].decode(errors="replace").split())[-200:]
    if trial.returncode == 0:
        return ""
    return (
        f"bubblewrap fails here ({reason}); let it make namespaces: for a user, user namespaces (sysctl "
        "user.max_user_namespaces, kernel.unprivileged_userns_clone, an AppArmor profile of bwrap); for root, "
        "CAP_SYS_ADMIN"
    )


def start(orders: Orders, *, stdin: _Stream, stdout: _Stream, stderr: _Stream) -> subprocess.Popen[bytes]:
    """Start a process, the leader of a session of its own. Raises EnvironmentFault where none can be started."""
    require(orders.unsafe)
    return _launch(orders, stdin=stdin, stdout=stdout, stderr=stderr)


def _launch(orders: Orders, *, stdin: _Stream, stdout: _Stream, stderr: _Stream) -> subprocess.Popen[bytes]:
    with bubblewrap.descriptor_of(json.dumps(_for_boot(orders)).encode()) as order_file:
        boot = ["-I", "-S", "-c", _source("r2v.sandbox.boot"), str(order_file.fileno())]
        command = [sys.executable, *boot] if orders.unsafe else [*_walls(orders), "--", bubblewrap.python(), *boot]
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
                pass_fds=[order_file.fileno(), *orders.keep],
            )
        except OSError as error:
            raise EnvironmentFault(
                f"the sandbox cannot start a process ({error}); free memory or processes and run the same command again"
            ) from error


def _walls(orders: Orders) -> list[str]:
    return bubblewrap.walls(orders.limits, orders.readable, orders.mounted, orders.links)


def _for_boot(orders: Orders) -> dict[str, Any]:
    """The orders as `boot` reads them."""
    limits = orders.limits
    walled = {
        "uid": bubblewrap.fresh_uid(),
        "folders": [bubblewrap.HOME, bubblewrap.TEMPORARY],
        "folder_options": f"size={limits.disk_bytes},nr_inodes={limits.files}",
        "filter": b64encode(seccomp.program(os.uname().machine)).decode(),
    }
    return {
        "walled": None if orders.unsafe else walled,
        "limits": _rlimits(orders),
        "traceable": orders.traceable,
        "modules": {name: _compiled(name) for name in orders.modules},
        "main": orders.modules[-1] if orders.modules else None,
        "data": orders.data,
    }


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
