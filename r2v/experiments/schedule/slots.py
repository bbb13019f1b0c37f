"""Slots: number of runs that fit on this machine at once, by the peak memory of ended runs on the host and the GPUs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from r2v.config.execution import allocated_cpus
from r2v.experiments.records import RunRecord

USABLE = 0.9
"""Share of the free memory that runs may use."""
_QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """Available bytes on this machine; `gpus`: on each of its GPUs."""

    memory: int
    gpus: tuple[int, ...] = ()

    @classmethod
    def now(cls) -> FreeMemory:
        """Return the memory available now."""
        return cls(memory=available_memory(), gpus=free_gpu_memory())


def slots_that_fit(runs: Sequence[RunRecord], free: FreeMemory, cpus: int | None = None) -> int:
    """Return the number of runs at once: one until an ended run gives a measurement, then as many as the largest peaks
    fit into the usable memory of the machine and of each GPU in use, at most one per CPU."""
    peaks = [run.peak_bytes for run in runs if run.peak_bytes]
    on_gpus = [run.gpu_bytes for run in runs if run.gpu_bytes]
    if not peaks or (free.gpus and not on_gpus):
        return 1
    counts = [int(USABLE * free.memory / max(peaks)), allocated_cpus() if cpus is None else cpus]
    for available, *used in zip(free.gpus, *on_gpus, strict=False):
        if max(used) > 0:
            counts.append(int(USABLE * available / max(used)))
    return max(1, min(counts))


class GpuWatch:
    """GPU memory of runs: free bytes before them minus the least free bytes while each ran alone.

    every: seconds between two samples.
    """

    def __init__(self, before: tuple[int, ...], *, every: float = 2.0) -> None:
        self._before, self._every, self._at = before, every, float("-inf")
        self._least: dict[str, tuple[int, ...]] = {}

    def look(self, working: Sequence[str]) -> None:
        """Sample the GPUs if exactly one run is working."""
        if not self._before or len(working) != 1 or time.monotonic() - self._at < self._every:
            return
        self._at, free = time.monotonic(), free_gpu_memory()
        if len(free) == len(self._before):
            least = self._least.get(working[0], self._before)
            self._least[working[0]] = tuple(map(min, least, free))

    def taken(self, run: str) -> list[int]:
        """Return the bytes a run used on each GPU; empty if it was never sampled alone."""
        least = self._least.get(run)
        return [] if least is None else [before - now for before, now in zip(self._before, least, strict=True)]


def available_memory() -> int:
    """Return the available bytes of host memory: of the machine, or of this process's cgroup if it has less."""
    limits = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # no cgroup, or "max": no limit
        folder = Path("/sys/fs/cgroup")
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        limits.append(int(limit) - int(used))
    return max(0, min(limits, default=0))


def free_gpu_memory() -> tuple[int, ...]:
    """Return the free bytes of each GPU as counted by nvidia-smi; empty without a GPU."""
    if shutil.which(_QUERY[0]) is None:
        return ()
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=30, check=True).stdout
        return tuple(int(line) << 20 for line in answer.split())  # MiB
    return ()
