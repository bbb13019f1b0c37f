"""The environment of a Slurm job: the GPUs and the memory that Slurm granted it, and the kernel's OOM kills in it."""

from __future__ import annotations

import os
from pathlib import Path


def restart_count() -> int:
    """Return the number of earlier starts of this job; 0 outside of a job."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def granted_gpus() -> int:
    """Return the number of GPUs that Slurm granted this job on this node."""
    if count := os.environ.get("SLURM_GPUS_ON_NODE"):
        return int(count)
    listed = os.environ.get("SLURM_JOB_GPUS") or os.environ.get("CUDA_VISIBLE_DEVICES") or ""
    return len([index for index in listed.split(",") if index])


def granted_memory() -> int | None:
    """Return the bytes of memory that Slurm granted this job on its node; None if unknown."""
    if per_node := os.environ.get("SLURM_MEM_PER_NODE"):
        return int(per_node) << 20 or None
    cpus, per_cpu = os.environ.get("SLURM_CPUS_ON_NODE"), os.environ.get("SLURM_MEM_PER_CPU")
    return int(cpus) * int(per_cpu) << 20 if cpus and per_cpu else None


def oom_kills() -> int:
    """Return the number of OOM kills in this process's cgroups so far; 0 if unknown."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # a kernel without cgroups
        return 0
    kills = 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        unified = controllers == ""  # cgroup v2 has one hierarchy, v1 one per controller
        if not unified and "memory" not in controllers.split(","):
            continue
        base, name = ("", "memory.events") if unified else ("memory", "memory.oom_control")
        try:
            words = (Path("/sys/fs/cgroup") / base / path.lstrip("/") / name).read_text().split()
        except OSError:  # not mounted inside a container
            continue
        kills += int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
    return kills
