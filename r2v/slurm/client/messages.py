"""Slurm's messages, read: does a refusal pass by itself, and can a job that waits ever start?

    refusal_passes("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)")
    cannot_start("PartitionTimeLimit")

The texts are those of slurm_strerror and of job_state_reason_string (Slurm 20.11 to 25.11). A refusal that is not
listed is taken for one for good, which a person reads at once; a reason that is not listed may pass.
"""

from __future__ import annotations

import re

SBATCH_REFUSALS = {
    "Job violates accounting/QOS policy": True,  # the submit limit; a size beyond a limit where DenyOnLimit is set
    "Resource temporarily unavailable": True,  # MaxJobCount is reached
    "Slurm temporarily unable to accept job, sleeping and retrying": True,
    "Requested partition configuration not available now": True,  # it is down or drained
    "Disk quota exceeded": True,  # of the spool folder
    "Requested time limit is invalid (missing or exceeds some limit)": False,
    "Time limit specification required, but not provided": False,
    "Memory specification can not be satisfied": False,
    "Memory required by task is not available": False,
    "Requested node configuration is not available": False,
    "Node count specification invalid": False,
    "CPU count specification invalid": False,
    "CPU count per node can not be satisfied": False,
    "More processors requested than permitted": False,
    "Job size specification needs to be at least": False,
    "Invalid generic resource (gres) specification": False,
    "Invalid partition name specified": False,
    "Invalid account or account/partition combination specified": False,
    "Invalid qos specification": False,
    "Invalid node name specified": False,
    "Invalid feature specification": False,
    "Invalid job array specification": False,
    "Requested reservation is invalid": False,
    "Access to requested reservation denied": False,
    "User's group not permitted to use this partition": False,
    "Access/permission denied": False,
    "Invalid user id": False,
    "Job dependency problem": False,
}
"""A text of sbatch -> True if the refusal passes: there are too many jobs now, or a part of the cluster is out of
order."""
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
    return any(passes for text, passes in SBATCH_REFUSALS.items() if text in message)


def cannot_start(reason: str) -> bool:
    """True if a job with this reason of squeue waits for ever."""
    bare = reason.strip("() ")
    return bare in CANNOT_START or bare.replace("_", " ") in CANNOT_START or _LIMITS.fullmatch(bare) is not None
