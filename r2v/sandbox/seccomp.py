"""Seccomp filter of denied system calls, as a BPF program that `boot` installs.

Own namespaces and mounts would allow file systems without a limit; System V and POSIX shared memory and queues have no
limit either; keys, tracing, BPF, io_uring, userfaultfd and perf are attack surface that no program here needs. These
calls fail with EPERM; `clone3`, whose flags a filter cannot read, fails with ENOSYS, so that C libraries use `clone`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple


class _Machine(NamedTuple):
    audit: int
    """AUDIT_ARCH_* of linux/audit.h."""
    clone: int
    denied: tuple[int, ...]


_DENIED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447)
"""io_uring_*, open_tree, move_mount, fs*, pidfd_getfd, mount_setattr, memfd_secret: the same on every machine."""
_MACHINES = {
    # shm*, semget, msgget, ptrace, pivot_root, chroot, mount, umount2, mq_open, key calls, unshare, perf_event_open,
    # *_by_handle_at, setns, process_vm_*, bpf, userfaultfd
    "x86_64": _Machine(
        0xC000003E,
        56,
        (29, 30, 64, 68, 101, 155, 161, 165, 166, 240, 248, 249, 250, 272, 298, 303, 304, 308, 310, 311, 321, 323),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        220,
        (39, 40, 41, 51, 97, 117, 180, 186, 190, 194, 196, 217, 218, 219, 241, 264, 265, 268, 270, 271, 280, 282),
    ),
}
MACHINES = tuple(_MACHINES)
"""Supported machines, by os.uname().machine."""
_CLONE3, _X32 = 435, 0x40000000
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW*: time, mount, cgroup, uts, ipc, user, pid, net."""
_ALLOW, _EPERM, _ENOSYS, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in seccomp_data; the first argument's is of its low half, since both machines are little-endian."""


def program(machine: str) -> bytes:
    """Return the filter for a machine of MACHINES: an array of sock_filter, 8 bytes each."""
    audit, clone, denied = _MACHINES[machine]
    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_EQUAL, audit, 1, 0),
        _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER),
        *_refusal(_AT_LEAST, _X32, _EPERM),
        *_refusal(_EQUAL, _CLONE3, _ENOSYS),
    ]
    for number in (*denied, *_DENIED_EVERYWHERE):
        lines += _refusal(_EQUAL, number, _EPERM)
    lines += [
        _line(_EQUAL, clone, 0, 3),
        _line(_LOAD, _FIRST_ARGUMENT),
        *_refusal(_ANY_BIT, _NEW_NAMESPACES, _EPERM),
        _line(_RETURN, _ALLOW),
    ]
    return b"".join(lines)


def _refusal(test: int, value: int, verdict: int) -> tuple[bytes, bytes]:
    return _line(test, value, 0, 1), _line(_RETURN, verdict)


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
