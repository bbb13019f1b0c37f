"""Slurm's messages, read: does a refusal pass by itself, and can a job that waits ever start?

    refusal_passes("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)")
    cannot_start("PartitionTimeLimit")

The texts are those of slurm_strerror and of job_state_reason_string (Slurm 20.11 to 25.11). A refusal that is not
listed is taken for one for good, which a person reads at once; a reason that is not listed may pass.
"""

from __future__ import annotations

import re

PASSING_REFUSALS = (
    "Job violates accounting/QOS policy",  # the submit limit; a size beyond a limit where DenyOnLimit is set
    "Resource temporarily unavailable",  # MaxJobCount is reached
    "Slurm temporarily unable to accept job, sleeping and retrying",
    "Requested partition configuration not available now",  # it is down or drained
    "Disk quota exceeded",  # of the spool folder
)
"""Texts of sbatch for refusals that pass: there are too many jobs now, or a part of the cluster is out of order."""
_LIMITS = re.compile(r"(QOS|Assoc)Max\w*Per(Job|Node)\w*|QOSMin\w+NotSatisfied")
"""Reasons that name a limit on one job, which nothing but another request gets past."""
CANNOT_START = frozenset({
    *("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "MaxMemPerLimit", "BadConstraints"),
    *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "ReservationDeleted", "ReservationInvalid"),
    *("DeadLine", "JobHoldMaxRequeue", "JobHeldAdmin", "launch failed requeued held"),
})  # fmt: skip
"""Reasons for which a job waits until a person acts; one whom its owner holds is where the owner wants it."""


def refusal_passes(message: str) -> bool:
    """True if sbatch would take the same job later."""
    return any(text in message for text in PASSING_REFUSALS)


def cannot_start(reason: str) -> bool:
    """True if a job with this reason of squeue waits for ever."""
    bare = reason.strip("() ")
    return bare in CANNOT_START or bare.replace("_", " ") in CANNOT_START or _LIMITS.fullmatch(bare) is not None
