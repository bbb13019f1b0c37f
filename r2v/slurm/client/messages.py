"""Slurm's messages, classified: refusals that pass with time, and reasons for which a pending job never starts.

    refusal_passes("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)")
    cannot_start("PartitionTimeLimit")

The texts are those of slurm_strerror and of job_state_reason_string (Slurm 20.11 to 25.11). An unlisted refusal counts
as permanent, since a person reads it at once; an unlisted reason may pass.
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
"""Texts of sbatch for refusals that pass: too many jobs now, or a part of the cluster is out of order."""
_LIMITS = re.compile(r"(QOS|Assoc)Max\w*Per(Job|Node)\w*|QOSMin\w+NotSatisfied")
"""Reasons that name a limit on one job: only another request gets past it."""
CANNOT_START = frozenset({
    *("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "MaxMemPerLimit", "BadConstraints"),
    *("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "ReservationDeleted", "ReservationInvalid"),
    *("DeadLine", "JobHoldMaxRequeue", "JobHeldAdmin", "launch failed requeued held"),
})  # fmt: skip
"""Reasons for which a job waits until a person acts. JobHeldUser is not one: the owner wants it held."""


def refusal_passes(message: str) -> bool:
    """True if sbatch may accept the same job later."""
    return any(text in message for text in PASSING_REFUSALS)


def cannot_start(reason: str) -> bool:
    """True if a job with this reason in squeue never starts."""
    bare = reason.strip("() ")
    return bare in CANNOT_START or bare.replace("_", " ") in CANNOT_START or _LIMITS.fullmatch(bare) is not None
