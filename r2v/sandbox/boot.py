"""Boot: the first code of a sandbox's process, ours. It takes its modules, limits and rights from a descriptor.

    python -I -S -c BOOT DESCRIPTOR

The code of every module it runs comes with its orders, so nothing that an earlier program changed on a disk is run.
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

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_CAPABILITY_VERSION = 0x20080522
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def main(descriptor: int) -> None:
    """Carry out the orders: limits first, then the rights, then the module that does the work."""
    with os.fdopen(descriptor, encoding="utf-8") as file:
        orders: dict[str, Any] = json.load(file)
    libc = ctypes.CDLL(None)
    if orders["unsafe"]:
        libc.prctl(_PR_SET_PDEATHSIG, 9)
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    for name, most in orders["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    if orders["uid"] is not None:
        os.setgroups([])
        os.setresgid(*[orders["uid"]] * 3)
        os.setresuid(*[orders["uid"]] * 3)
        libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())  # the inheritable ones too
    libc.prctl(_PR_SET_DUMPABLE, int(orders["traceable"]))
    for name, code in orders["modules"].items():
        _load(name, marshal.loads(b64decode(code)))
    sys.modules[orders["main"]].main(orders["data"])


def _load(name: str, code: CodeType) -> None:
    """Make a module of its code, with the empty packages above it."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        package = sys.modules.setdefault(".".join(parts[:count]), ModuleType(".".join(parts[:count])))
        package.__path__ = []
    module = sys.modules[name] = ModuleType(name)
    exec(code, module.__dict__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
