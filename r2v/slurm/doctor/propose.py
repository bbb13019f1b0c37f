"""The proposal of a site profile: which of the shipped ones fits what Slurm says of this cluster, and what differs."""

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
"""Clusters that a shipped profile was written for, by the name that they give themselves."""
_LONGEST = 48 * 60
"""Minutes that the longest of the shipped headers asks for."""


def proposal(root: Path, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    """The profile that this project has, or what it would be given. Submits nothing."""
    if not says_nothing(root):
        yield ok(f"{SITE} adapts every job, from the profile {project_profile(root).base}")
        return
    config = _config()
    up = [one for one in partitions.values() if one.up]
    gpu = max((one for one in up if _gpus(one)), key=lambda one: max(map(gpu_count, _gpus(one))), default=None)
    cpu = next((one for one in up if not _gpus(one)), gpu)
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
    """Slurm's own settings; {} where it does not tell."""
    try:
        text = call(["scontrol", "show", "config"])
    except EnvironmentFault:
        return {}
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.M))


def _profile(config: Mapping[str, str], gpu: Partition | None) -> str:
    if known := _KNOWN.get(config.get("ClusterName", "").lower()):
        return known
    if "unrecognized option" not in client.test_only(["--container-image=none"]).line:
        return "pyxis"
    return "cpu" if gpu is None else "gpu"


def _differences(name: str, config: Mapping[str, str], gpu: Partition | None, cpu: Partition | None) -> Iterator[str]:
    """The differences of this cluster from the profile, as lines of site.yaml."""
    site = shipped(name) if name != NONE else None
    for key, named, partition in (
        ("gpu_jobs", site and site.gpu_jobs.get("partition"), gpu),
        ("cpu_jobs", site and site.cpu_jobs.get("partition"), cpu),
    ):
        if named and partition is not None and partition.name != named:
            yield f"{key}: {{partition: {partition.name}}}"
    limit = min((minutes(one.max_time) or _LONGEST for one in (gpu, cpu) if one is not None), default=_LONGEST)
    if limit < _LONGEST:
        yield f'max_time: "{limit // 60}:{limit % 60:02}:00"'
    if config.get("MaxArraySize") in ("0", "1"):
        yield "arrays: false"


def _gpus(partition: Partition) -> list[str]:
    return [item.split("(")[0] for item in partition.gres.split(",") if item.startswith("gpu")]


def _kind(partition: Partition) -> str:
    """The type of its largest node's GPUs; "" where it names none."""
    largest = max(_gpus(partition), key=gpu_count)
    return largest.split(":")[1] if largest.count(":") == 2 else ""
