"""Slots: how many runs of an experiment fit into this machine at once, by what the first one needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from r2v.storage.durations import cpus_here

USABLE = 0.9
"""The share of the free memory that runs may take."""


def slots_that_fit(peaks: Sequence[int], available: int, cpus: int | None = None) -> int:
    """Runs at once: one until a run has ended and so been measured, then as many as the largest peak goes into the
    usable memory, and no more than CPUs. `peaks`, `available`: bytes."""
    if not peaks:
        return 1
    return max(1, min(int(USABLE * available / max(peaks)), cpus_here() if cpus is None else cpus))


def available_memory() -> int:
    """Bytes of memory that can be had here: of the machine, and of this process's cgroup where it has a limit."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):
        folder = Path("/sys/fs/cgroup")
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    return max(0, min(found, default=0))
