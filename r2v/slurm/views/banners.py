"""Banners: what a status says above its jobs: what could not be asked, and what stops the whole chain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2v.errors import InputError
from r2v.slurm import chain as chains
from r2v.slurm.chain import Chain
from r2v.slurm.configuration import require_configuration
from r2v.slurm.views.humanize import clock
from r2v.slurm.views.states import JobStatus, SlurmSnapshot


def banners(
    chain: Chain, jobs: Sequence[JobStatus], slurm: SlurmSnapshot, root: Path, attendant: str = ""
) -> list[str]:
    """The lines for one chain. attendant: who is changing it now."""
    lines = []
    if (chains.folder(root, chain.name) / "config.yaml").exists():
        try:
            require_configuration(root, chain)
        except InputError as error:
            lines.append(str(error))
    if slurm.queue_down:
        lines.append(f"the queue could not be asked: {slurm.queue_down}")
    if slurm.accounting.down:
        lines.append(f"accounting down, status from files and squeue: {slurm.accounting.down}")
    if chain.cancelled:
        lines.append(f"cancelled at {clock(chain.cancelled)}; `r2v resume {chain.name}` takes it up again")
    missing = [job.job for job in jobs if job.state == "not submitted"]
    if missing and not chain.cancelled:
        lines.append(
            f"{attendant} is submitting"
            if attendant
            else f"not submitted: {', '.join(missing)}; the command that submitted was cut off. Run it again: what is "
            "in the queue is adopted"
        )
    return lines
