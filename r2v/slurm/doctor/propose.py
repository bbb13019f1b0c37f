"""The proposal of a site profile: the shipped one that fits this cluster by Slurm's answers, with its differences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.slurm.client import client
from r2v.slurm.client.client import Partition
from r2v.slurm.client.command import call
from r2v.slurm.doctor.check_results import Finding, ok
from r2v.slurm.site.directives import gpu_count, minutes
from r2v.slurm.site.site_profile import NONE, SITE, project_profile, shipped
from r2v.slurm.site.write_headers import says_nothing

_KNOWN = {"perlmutter": "nersc", "ls6": "tacc", "lonestar6": "tacc"}
"""Shipped profiles by ClusterName."""
_LONGEST = 48 * 60
"""Minutes: the longest time limit among the shipped headers, the only one that a site's limit may cut."""


def proposal(root: Path, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    """Yield the project's site profile, or a proposal of one. Submits nothing."""
    if not says_nothing(root):
        yield ok(f"{SITE} adapts every job, from the profile {project_profile(root).base}")
        return
    config = _config()
    up = [partition for partition in partitions.values() if partition.up]
    with_gpus = [partition for partition in up if _gpus(partition)]
    gpu = max(with_gpus, key=lambda partition: max(map(gpu_count, _gpus(partition))), default=None)
    cpu = next((partition for partition in up if not _gpus(partition)), gpu)
    name = _profile(config, gpu)
    words = [f"profile={name}", *([f"gpu={kind}"] if name == "gpu" and gpu and (kind := _kind(gpu)) else [])]
    lines = list(_differences(name, config, gpu, cpu))
    also = f"; then in {SITE}: {'; '.join(lines)}; and again: r2v cluster set" if lines else ""
    yield Finding(
        state="ok",
        what=f"the site profile {name} fits this cluster, {config.get('ClusterName', 'which has no name')}",
        remedy=f"r2v cluster set {' '.join(words)}{also}",
    )


def _config() -> dict[str, str]:
    """Return Slurm's settings; {} if they are not available."""
    try:
        text = call(["scontrol", "show", "config"])
    except EnvironmentFault:  # some sites forbid it; a general profile is proposed then
        return {}
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.M))


def _profile(config: Mapping[str, str], gpu: Partition | None) -> str:
    if profile := _KNOWN.get(config.get("ClusterName", "").lower()):
        return profile
    # Only pyxis adds this option.
    if "unrecognized option" not in client.test_only(["--container-image=none"]).line:
        return "pyxis"
    return "cpu" if gpu is None else "gpu"


def _differences(name: str, config: Mapping[str, str], gpu: Partition | None, cpu: Partition | None) -> Iterator[str]:
    """Yield the differences of this cluster from the profile, as lines of site.yaml."""
    site = shipped(name) if name != NONE else None
    for key, named, partition in (
        ("gpu_jobs", site and site.gpu_jobs.get("partition"), gpu),
        ("cpu_jobs", site and site.cpu_jobs.get("partition"), cpu),
    ):
        if named and partition is not None and partition.name != named:
            yield f"{key}: {{partition: {partition.name}}}"
    limits = [minutes(partition.max_time) or _LONGEST for partition in (gpu, cpu) if partition is not None]
    limit = min(limits, default=_LONGEST)
    if limit < _LONGEST:
        yield f'max_time: "{limit // 60}:{limit % 60:02}:00"'
    if config.get("MaxArraySize") in ("0", "1"):
        yield "arrays: false"


def _gpus(partition: Partition) -> list[str]:
    return [item.split("(")[0] for item in partition.gres.split(",") if item.startswith("gpu")]


def _kind(partition: Partition) -> str:
    """Return the GPU type of a partition's largest node; "" if Slurm names none."""
    largest = max(_gpus(partition), key=gpu_count)
    return largest.split(":")[1] if largest.count(":") == 2 else ""
