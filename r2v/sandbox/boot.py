"""First code of a sandboxed process, which reads its modules, limits and rights from a descriptor.

    python -I -S -c BOOT DESCRIPTOR

The orders contain the code of every module, so that no file which an earlier program may have changed is run.
"""

from __future__ import annotations

import ctypes
import json
import marshal
import os
import resource
import sys
from base64 import b64decode
from types import CodeType, ModuleType
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 22, 38, 47
_SECCOMP_FILTER, _CLEAR_ALL = 2, 4
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32
_CAPABILITY_VERSION = 0x20080522
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def main(descriptor: int) -> None:
    """Carry out the orders: set the limits, drop the rights, then run the main module."""
    with os.fdopen(descriptor, encoding="utf-8") as file:
        orders: dict[str, Any] = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    if not orders["walled"]:
        libc.prctl(_PR_SET_PDEATHSIG, 9)
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    for name, most in orders["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    if orders["walled"]:
        _give_up_rights(libc, orders["walled"])
    libc.prctl(_PR_SET_DUMPABLE, int(orders["traceable"]))
    for name, code in orders["modules"].items():
        _load(name, marshal.loads(b64decode(code)))
    if orders["main"]:
        sys.modules[orders["main"]].main(orders["data"])


def _give_up_rights(libc: ctypes.CDLL, walled: dict[str, Any]) -> None:
    """Limit the number of files, which bubblewrap cannot, then drop all rights and install the seccomp filter."""
    options = walled["folder_options"].encode()
    for folder in walled["folders"]:
        flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV
        _require(libc.mount(b"tmpfs", folder.encode(), None, ctypes.c_ulong(flags), options))
    if walled["uid"] is not None:
        os.setgroups([])
        os.setresgid(*[walled["uid"]] * 3)
        os.setresuid(*[walled["uid"]] * 3)
    _require(libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0))
    _require(libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()))
    lines = b64decode(walled["filter"])
    program = _Program(len(lines) // 8, ctypes.cast(ctypes.c_char_p(lines), ctypes.c_void_p))
    _require(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _require(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(program)))


class _Program(ctypes.Structure):
    """The kernel's sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _load(name: str, code: CodeType) -> None:
    """Create a module from its code, with empty parent packages."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        package = sys.modules.setdefault(".".join(parts[:count]), ModuleType(".".join(parts[:count])))
        package.__path__ = []
    module = sys.modules[name] = ModuleType(name)
    exec(code, module.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
