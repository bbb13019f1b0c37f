"""Humanized values: reasons of pending jobs, sizes and times."""

from __future__ import annotations

_REASONS = {
    "": "just submitted",
    "None": "just submitted",
    "Priority": "others are ahead in the queue",
    "Resources": "first in line, waits for free GPUs or nodes",
    "BeginTime": "put back into the queue, Slurm starts it again after a pause",
    "Dependency": "waits for its parents",
    "DependencyNeverSatisfied": "a parent failed; it keeps its place until that one is healed or resumed",
    "JobHeldUser": "held by you; scontrol release {id}",
    "JobHeldAdmin": "held by an administrator of the cluster; ask them",
    "JobHoldMaxRequeue": "Slurm gave up starting it again; look at its log, then scontrol release {id}",
    "JobArrayTaskLimit": "as many tasks of this array run as it allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "PartitionNodeLimit": "asks for more nodes than the partition allows; r2v doctor",
    "PartitionTimeLimit": "asks for more time than the partition allows; r2v doctor",
    "ReqNodeNotAvail": "the nodes it could use are down, drained or reserved",
    "Nodes required for job are DOWN": "the nodes it could use are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "Reservation": "waits for its reservation",
    "Licenses": "waits for a licence",
    "BadConstraints": "no node can satisfy what it asks for; r2v doctor",
    "InvalidAccount": "its account is not known; r2v cluster set account=...",
    "InvalidQOS": "its QOS is not known; r2v cluster set qos=...",
    "AccountNotAllowed": "its account may not use this partition; r2v cluster set account=...",
    "QOSNotAllowed": "its QOS may not use this partition; r2v cluster set qos=...",
    "Prolog": "the node is being made ready",
    "Cleaning": "the node is cleaning up after its last start",
    "launch failed requeued held": "could not be started on its node; see `scontrol show job {id}`, then scontrol "
    "release {id}",
}


def reason_text(reason: str, job_id: str = "") -> str:
    """Return a reason of squeue in plain words, with Slurm's own word in brackets for a limit of the site.

    >>> reason_text("QOSMaxGRESPerUser")
    "a limit of your QOS is reached (QOSMaxGRESPerUser)"
    """
    bare = reason.split(",")[0].strip("() ").replace("_", " ")
    if bare in _REASONS:
        return _REASONS[bare].format(id=job_id)
    for stem, limited in (("QOS", "your QOS"), ("Assoc", "your account"), ("MaxJobsPer", "your account")):
        if bare.startswith(stem):
            return f"a limit of {limited} is reached ({bare})"
    return f"Slurm says {bare}"


def size(count: int) -> str:
    """Return bytes as text: 610 MB, 12.1 GB (powers of 1024)."""
    return f"{count / 2**20:.0f} MB" if count < 2**30 else f"{count / 2**30:.1f} GB"


def paid(usd: float) -> str:
    """Return the dollars billed by providers, unconfirmed requests included, as text."""
    return f"${usd:,.4f} paid" if usd else "nothing paid"


def clock(text: str) -> str:
    """Return a time of Slurm or of a record, to the minute."""
    return text.replace("T", " ")[:16]
