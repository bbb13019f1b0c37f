"""Settling: what a command that only shows does first, where a chain is out of line. One that is not costs no call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2v.errors import R2VError
from r2v.log import logger
from r2v.slurm import client
from r2v.slurm.chain import Chain
from r2v.slurm.configuration import require_configuration
from r2v.slurm.reconcile import reconcile
from r2v.slurm.views.states import SlurmSnapshot
from r2v.slurm.views.status import FINISHED, ChainStatus, StatusInputs, gather_inputs, statuses


def settled_inputs(wanted: Sequence[str], root: Path = Path()) -> StatusInputs:
    """The inputs, gathered once more where a chain was out of line and has been looked after."""
    inputs = gather_inputs(wanted, root)
    due = [one.name for one in statuses(inputs, root) if _out_of_line(inputs.chains[one.name], one, inputs.slurm, root)]
    for name in due:
        try:
            require_configuration(root, inputs.chains[name])
            for line in reconcile(name, root=root):
                logger.warning("%s: left to the next look: %s", name, line)
        except R2VError as error:  # such as: somebody else is at it
            logger.warning("%s: not looked after: %s", name, error)
    return gather_inputs(wanted, root) if due else inputs


def _out_of_line(chain: Chain, found: ChainStatus, slurm: SlurmSnapshot, root: Path) -> bool:
    """Whether what is differs from what should be, as far as files and the queue tell."""
    if slurm.queue is None or not chain.jobs:
        return False
    strangers = {row.id for row in client.of_chain(slurm.queue.values(), chain.name, root)} - chain.slurm_ids
    unanswered = [
        one
        for one in found.jobs
        if one.state == "failed"
        and one.job in chain.jobs
        and not one.by_hand
        and (latest := chain.jobs[one.job].latest) is not None
        and latest.failure is None
    ]
    settled = FINISHED | {"not submitted", "failed"}
    return bool(
        strangers
        or (unanswered and not chain.cancelled)
        or any(one.state == "blocked" and one.never for one in found.jobs)
        or any(entry.planned for entry in chain.jobs.values())
        or any(one.owner and one.state in settled and not chain.jobs[one.job].skipped for one in found.jobs)
    )
