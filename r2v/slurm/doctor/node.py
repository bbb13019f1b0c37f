"""Checks of a node, from inside a job: the shared folder, the driver, every GPU that Slurm granted, and submission."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.slurm.client import client
from r2v.slurm.client.command import require
from r2v.slurm.doctor.check_results import Finding, bad, ok, warn
from r2v.slurm.job.job_environment import granted_gpus
from r2v.slurm.site.site_profile import SITE
from r2v.storage.paths import CHAINS

TOKEN = CHAINS / ".doctor"
"""File written on the login node; a job that does not see it runs on a node without the shared folder."""
INSTALL = "install a torch whose CUDA the driver takes, from https://download.pytorch.org/whl/ (cu126, cu128, ...)"


def in_a_job(root: Path) -> Iterator[Finding]:
    """Yield the findings of all checks inside a job."""
    if (root / TOKEN).exists():
        yield ok(f"this node sees what {(root / TOKEN).read_text().split()[0]} wrote")
    else:
        yield warn(
            f"{root / TOKEN} is not seen on this node",
            "run r2v doctor on the login node first; if you did, "
            "the folder is not shared: move the checkout to one that is",
        )
    if granted := granted_gpus():
        yield _driver()
        yield from _cuda(granted)
    else:
        yield ok("this job was given no GPU")
    yield _submission()


def _submission() -> Finding:
    """Check that this node can submit: a dying job heals its chain from its node, and so does a sentinel."""
    remedy = (
        f"name a login node that takes ssh from here, `submit_host: NAME` in {SITE}, or healing waits for a command"
    )
    try:
        require()
        answer = client.test_only(["--ntasks=1", "--time=1"])
    except EnvironmentFault as error:
        return bad(f"this node may not submit: {error}", remedy)
    if not answer.ok:
        return bad(f"this node may not submit: {answer.line}", remedy)
    return ok("this node may submit jobs")


def _exclude() -> str:
    """Return the directive that excludes this node."""
    return f"#SBATCH --exclude={os.environ.get('SLURMD_NODENAME') or socket.gethostname()}"


def _driver() -> Finding:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    remedy = f"exclude this node ({_exclude()}) and tell the cluster's administrators"
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:  # nvidia-smi hangs on a broken card
        return bad(f"the NVIDIA driver does not answer: {error}", remedy)
    answer = "; ".join((done.stdout or done.stderr).strip().splitlines())
    return bad(f"nvidia-smi: {answer}", remedy) if done.returncode else ok(f"driver: {answer}")


def _cuda(granted: int) -> Iterator[Finding]:
    """Yield findings on the GPUs that torch sees, after a matrix product on each."""
    import torch

    version: str | None = torch.version.cuda
    if version is None:
        yield bad(f"torch {torch.__version__} is built without CUDA", INSTALL)
        return
    if not torch.cuda.is_available():
        yield bad(
            f"torch {torch.__version__} (CUDA {version}) finds no usable GPU",
            f"the driver is too old for CUDA {version}, or CUDA_VISIBLE_DEVICES is empty; {INSTALL}",
        )
        return
    count = torch.cuda.device_count()
    if count < granted:
        yield bad(
            f"torch sees {count} GPUs of the {granted} that Slurm gave",
            "something sets CUDA_VISIBLE_DEVICES: look in scripts/slurm/env.sh and in your shell's profile",
        )
    for index in range(count):
        yield _computes(index, torch.cuda.get_device_name(index))


def _computes(index: int, name: str) -> Finding:
    import torch

    try:
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        value = float((ones @ ones).sum())
    except RuntimeError as error:  # CUDA's errors, of one card; the others are still checked
        return bad(
            f"GPU {index}, {name}: {str(error).splitlines()[0]}",
            f"this torch has no code for this card, or the card is ill: {INSTALL}; or {_exclude()}",
        )
    if value != 64.0**3:
        return bad(
            f"GPU {index}, {name}, computes wrongly: {value} for {64.0**3}",
            f"{_exclude()}, and tell the cluster's administrators",
        )
    return ok(f"GPU {index}, {name}, computes; torch {torch.__version__}, CUDA {torch.version.cuda}")
