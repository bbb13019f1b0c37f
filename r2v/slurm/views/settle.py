"""Settling: what a command that only shows does first, where a chain is out of line. One that is not costs no call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2v.errors import LeaseConflict, R2VError
from r2v.log import logger
from r2v.slurm.chain.chain import Chain, require_configuration
from r2v.slurm.client import client
from r2v.slurm.healing.reconcile import reconcile
from r2v.slurm.views.states import SlurmSnapshot
from r2v.slurm.views.status import FINISHED, ChainStatus, StatusInputs, gather_inputs, statuses

LOOKS = 3
"""Looks at a chain that somebody else is changing: what the queue said a moment ago may be older than its files."""


def settled_inputs(wanted: Sequence[str], root: Path = Path()) -> StatusInputs:
    """The inputs, gathered once more where a chain was out of line and has been looked after."""
    for _ in range(LOOKS):
        inputs = gather_inputs(wanted, root)
        found = statuses(inputs, root)
        due = [one.name for one in found if _out_of_line(inputs.chains[one.name], one, inputs.slurm, root)]
        if not due:
            return inputs
        held = [name for name in due if not _look_after(inputs.chains[name], root)]
        if not held:
            break
    return gather_inputs(wanted, root)


def _look_after(chain: Chain, root: Path) -> bool:
    """Bring a chain in line, as far as that goes now; returns False where somebody else is at it."""
    try:
        require_configuration(root, chain)
        for line in reconcile(chain.name, root=root):
            logger.warning("%s: left to the next look: %s", chain.name, line)
    except LeaseConflict:
        return False
    except R2VError as error:
        logger.warning("%s: not looked after: %s", chain.name, error)
    return True


def _out_of_line(chain: Chain, found: ChainStatus, slurm: SlurmSnapshot, root: Path) -> bool:
    """Whether what is differs from what should be, as far as files and the queue tell."""
    if slurm.queue is None or not chain.jobs:
        return False
    strangers = {row.id for row in client.of_chain(slurm.queue.values(), chain.name, root)} - chain.slurm_ids
    unanswered = any(one.unanswered and not one.owner for one in found.jobs)
    settled = FINISHED | {"not submitted", "failed"}
    return bool(
        strangers
        or (unanswered and not chain.cancelled)
        or any(one.state in ("blocked", "healing") and one.never for one in found.jobs)
        or any(entry.planned for entry in chain.jobs.values())
        or any(one.owner and one.state in settled and not chain.jobs[one.job].skipped for one in found.jobs)
    )
