"""Waiting without a GPU: a job whose artifact somebody else is making goes back into the queue under its own id.

It waits there for the end of the Slurm job that holds the lease, or for a while where a process outside of Slurm does,
and then looks again. Chains that make the same thing wait for each other before they start (`r2v.slurm.shared_stages`);
this is for whoever is in no chain: a script given to sbatch by hand, a command on a login node.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from r2v.errors import EnvironmentFault
from r2v.log import logger
from r2v.signals import stop_signals
from r2v.slurm import client
from r2v.storage.record import HELD_BY

PAUSE = 600
"""Seconds from one look at a lease that is held outside of Slurm to the next."""


def put_back(job: str, error: Mapping[str, Any] | None) -> bool:
    """Put a Slurm job back into the queue because of a lease conflict; False where nobody else is known to hold the
    lease (this job's own earlier start may, for a minute), or the site puts nothing back: then it waits in place."""
    holder = (error or {}).get(HELD_BY)
    if holder is None or holder == job:
        return False
    # Slurm ends a job that it has put back; what it is told next it hears before it kills who asks.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT, *stop_signals()})
    logger.info("r2v job %s: %s", job, (error or {}).get("message", ""))
    logger.info("r2v job %s: back into the queue %s", job, f"behind job {holder}" if holder else f"for {PAUSE} s")
    if not client.requeue(job):
        return False
    try:
        behind = bool(holder) and client.update(job, dependency=f"afterany:{holder}")
        if not behind:
            client.update(job, starttime=f"now+{PAUSE}")
    except EnvironmentFault as told:
        logger.warning("r2v job %s: it starts again after Slurm's own pause: %s", job, told)
    return True
