"""Sandboxed process: `boot` isolated by bubblewrap, or without isolation on the user's request (`unsafe`).

An `unsafe` process still has resource limits, none of our environment variables, and no network if the kernel allows
leaving it; but it may read, change and stop whatever its user may.
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
    """Task and rights of a sandboxed process."""

    modules: tuple[str, ...]
    """Modules of this package to load, each after its imports; the last one's `main` is called."""
    data: dict[str, Any]
    """Argument of `main`, as JSON values."""
    limits: Limits = Limits()
    mounted: Mapping[str, Path] = field(default_factory=dict)
    """Path inside -> readable path, besides the system."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic link inside -> target."""
    keep: tuple[int, ...] = ()
    """Our descriptors that it inherits."""
    watched: bool = False
    """True for a supervisor, which counts in addition to the limit on processes."""
    traceable: bool = True
    """True if processes of the same user may trace it."""
    unsafe: bool = False
    """True to run without isolation."""
    folder: Path = Path("/")
    """Working directory if `unsafe`."""


def require(unsafe: bool) -> None:
    """Raise EnvironmentFault, in one line with the remedy, if this machine cannot sandbox and `unsafe` is False."""
    if not unsafe and (reason := lacking()):
        raise EnvironmentFault(
            f"code that a model wrote runs in a sandbox, and {reason}; or accept with "
            f"hierarchical.problems.unsafe=true that it may read, "
            "change and stop what you may"
        )


@cache
def lacking() -> str:
    """Return the reason why this machine has no sandbox, with the remedy; "" if it has one."""
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
    """Start a process as the leader of its own session. Raises EnvironmentFault if that fails."""
    require(orders.unsafe)
    return _launch(orders, stdin=stdin, stdout=stdout, stderr=stderr)


def _launch(orders: Orders, *, stdin: _Stream, stdout: _Stream, stderr: _Stream) -> subprocess.Popen[bytes]:
    with bubblewrap.descriptor_of(json.dumps(_for_boot(orders)).encode()) as order_file:
        boot = ["-I", "-S", "-c", _source("r2v.sandbox.boot"), str(order_file.fileno())]
        walls = bubblewrap.walls(orders.limits, orders.mounted, orders.links)
        command = [sys.executable, *boot] if orders.unsafe else [*walls, "--", bubblewrap.python(), *boot]
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


def _for_boot(orders: Orders) -> dict[str, Any]:
    """Return the orders in the form that `boot` reads."""
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
    """Return the reading and the writing end of a new pipe, both closed at the latest with `opened`."""
    reading, writing = os.pipe()
    return opened.enter_context(FileIO(reading, "rb")), opened.enter_context(FileIO(writing, "wb"))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a process group and wait for it. In isolation no process survives the first one."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _rlimits(orders: Orders) -> dict[str, int]:
    """Return the values for setrlimit. Bubblewrap's own process counts if it has the same user number."""
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
    """Return the compiled code of a module of this package, for the same interpreter."""
    return b64encode(marshal.dumps(compile(_source(name), name, "exec", dont_inherit=True))).decode()


@cache
def _source(name: str) -> str:
    """Return the source of a module of this package, read once."""
    return Path(__file__).with_name(f"{name.rpartition('.')[2]}.py").read_text()
