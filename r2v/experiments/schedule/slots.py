"""Slots: how many runs of an experiment fit into this machine at once, by what those that have ended needed of its
memory and, where there is a GPU, of the GPUs' memory."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from r2v.config.execution import allocated_cpus

USABLE = 0.9
"""The share of the free memory that runs may take."""
_QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")


class MeasuredRun(Protocol):
    """What a run was measured to need, in bytes: of memory, and of each GPU (empty: not measured)."""

    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def gpu_bytes(self) -> list[int]: ...


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """Bytes that can be had on this machine; `gpus`: of each of its GPUs."""

    memory: int
    gpus: tuple[int, ...] = ()

    @classmethod
    def now(cls) -> FreeMemory:
        """What can be had at this moment."""
        return cls(memory=available_memory(), gpus=free_gpu_memory())


def slots_that_fit(runs: Sequence[MeasuredRun], free: FreeMemory, cpus: int | None = None) -> int:
    """Runs at once: one until a run has ended and so been measured, then as many as the largest peaks go into the
    usable memory of the machine and of each GPU that runs take, and no more than CPUs."""
    peaks = [run.peak_bytes for run in runs if run.peak_bytes]
    on_gpus = [run.gpu_bytes for run in runs if run.gpu_bytes]
    if not peaks or (free.gpus and not on_gpus):
        return 1
    counts = [int(USABLE * free.memory / max(peaks)), allocated_cpus() if cpus is None else cpus]
    for available, *taken in zip(free.gpus, *on_gpus, strict=False):
        if max(taken) > 0:
            counts.append(int(USABLE * available / max(taken)))
    return max(1, min(counts))


class GpuWatch:
    """What runs take of the GPUs: what was free before them, less the least that was free while each worked alone.

    every: seconds between two looks at the GPUs.
    """

    def __init__(self, before: tuple[int, ...], *, every: float = 2.0) -> None:
        self._before, self._every, self._at = before, every, float("-inf")
        self._least: dict[str, tuple[int, ...]] = {}

    def look(self, working: Sequence[str]) -> None:
        """Look at the GPUs, where there are any and just one run works."""
        if not self._before or len(working) != 1 or time.monotonic() - self._at < self._every:
            return
        self._at, free = time.monotonic(), free_gpu_memory()
        if len(free) == len(self._before):
            known = self._least.get(working[0], self._before)
            self._least[working[0]] = tuple(map(min, known, free))

    def taken(self, run: str) -> list[int]:
        """Bytes of each GPU; empty where nobody has looked while this run worked alone."""
        least = self._least.get(run)
        return [] if least is None else [before - now for before, now in zip(self._before, least, strict=True)]


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


def free_gpu_memory() -> tuple[int, ...]:
    """Bytes that are free on each GPU, as nvidia-smi counts them; none where there is none."""
    if shutil.which(_QUERY[0]) is None:
        return ()
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        told = subprocess.run(_QUERY, capture_output=True, text=True, timeout=30, check=True).stdout
        return tuple(int(line) << 20 for line in told.split())
    return ()
