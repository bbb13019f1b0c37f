"""Bubblewrap: isolation of a sandboxed process.

Inside are a read-only system (/usr), Python's own library, a new /proc, five devices, and two size-limited file systems
in memory, /home and /tmp. Process, network, IPC, host name and cgroup namespaces are new; the environment has four
variables. An ordinary user needs user namespaces. Root does not: its code runs under an unused user number without
capabilities, because the kernel does not limit root's processes.
"""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from r2v.sandbox.limits import Limits

HOME, TEMPORARY = "/home", "/tmp"
"""The working directory inside, and the other writable folder; both are in memory."""
_PYTHON = "/python"
_ALL_UIDS = [0, 0, (1 << 32) - 1]
_UIDS, _UIDS_OF_A_PROCESS = 1_000_000_000, 1000
_counter = itertools.count()


def walls(limits: Limits, mounted: Mapping[str, Path], links: Mapping[str, str]) -> list[str]:
    """Return the bwrap command line that isolates a command. `mounted`: path inside -> readable path; `links`: symbolic
    link inside -> target. The command must be `boot`, which drops the remaining rights."""
    rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    memory = ["--size", str(limits.disk_bytes), "--tmpfs"]
    words = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += rights if as_root() else ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    words += ["--cap-add", "CAP_SYS_ADMIN"]
    words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", *_system(), *_library()]
    words += _folders(Path("/dev"))
    for device in ("null", "zero", "full", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    words += ["--proc", "/proc", "--perms", "1777", *memory, TEMPORARY, "--perms", "1777", *memory, HOME]
    for inside, path in mounted.items():
        words += [*_folders(Path(inside).parent), "--ro-bind", str(path), inside]
    for inside, target in links.items():
        words += [*_folders(Path(inside).parent), "--symlink", target, inside]
    words += ["--chdir", HOME, "--setenv", "HOME", HOME, "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin"]
    words += ["--setenv", "LANG", "C.UTF-8", "--remount-ro", "/"]
    return words


def as_root() -> bool:
    """True if isolation uses root's rights. Root of a container with its own user numbers counts as a user."""
    return os.geteuid() == 0 and _uid_map() == [_ALL_UIDS]


def _uid_map() -> list[list[int]]:
    """Return the ranges of user numbers as [first inside, first outside, count]."""
    return [[int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]


def root_in_disguise() -> bool:
    """True for the machine's root in a user namespace: the kernel would still treat its code as root's."""
    user = os.geteuid()
    return not as_root() and any(
        inner <= user < inner + count and user - inner + outer == 0 for inner, outer, count in _uid_map()
    )


def fresh_uid() -> int | None:
    """Return the user number of root's code, a new one per sandbox; None for other users, who keep their own."""
    if not as_root():
        return None
    return _UIDS + os.getpid() * _UIDS_OF_A_PROCESS + next(_counter) % _UIDS_OF_A_PROCESS


def python() -> str:
    """Return the interpreter's path inside."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{_prefix()}/bin/{version}"


def descriptor_of(content: bytes) -> BinaryIO:
    """Return a file in memory with this content, positioned at its start."""
    file = os.fdopen(os.memfd_create("r2v"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    words += _folders(Path("/etc"))
    for path in (Path("/etc/ld.so.cache"), Path("/etc/alternatives")):
        words += ["--ro-bind-try", str(path), str(path)]
    return words


def _folders(path: Path) -> list[str]:
    """Return options that create a folder and its parents, readable for all; bubblewrap's own default is root only."""
    folders = [folder for folder in (*reversed(path.parents), path) if folder != Path("/")]
    return [word for folder in folders for word in ("--perms", "0755", "--dir", str(folder))]


def _prefix() -> str:
    return sys.base_prefix if Path(sys.base_prefix).is_relative_to("/usr") else _PYTHON


def _library() -> list[str]:
    """Return options that mount a Python outside /usr, without its installed packages."""
    if _prefix() != _PYTHON:
        return []
    base, inside = Path(sys.base_prefix), Path(python())
    standard = f"lib/{inside.name}"
    words = [*_folders(inside.parent), "--ro-bind", str(base / "bin" / inside.name), str(inside)]
    words += ["--ro-bind", str(base / "lib"), f"{_PYTHON}/lib"]
    if (base / standard / "site-packages").is_dir():
        hidden = f"{_PYTHON}/{standard}/site-packages"
        words += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        words += ["--setenv", "LD_LIBRARY_PATH", f"{_PYTHON}/lib"]
    return words
