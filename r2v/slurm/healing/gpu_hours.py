"""The GPU-hours that a chain has used, for the budget that ends its healing (--max-gpu-hours)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.chain import Chain


def gpu_hours(root: Path, chain: Chain) -> float:
    """GPU-hours of all attempts so far, their restarts and helpers included: what sacct allotted, in whole seconds, or
    what the jobs wrote themselves (their last start to its end) where that is more, or where sacct does not know of
    them: accounting may be down, or come late."""
    ids = [attempt.id for job in chain.jobs.values() for attempt in job.attempts]
    arrays = [array for id_ in ids for array in chains.record(root, chain.name, id_).helpers]
    accounts = client.accounting([*ids, *arrays]).jobs
    known = {id_: sum(row.gpu_hours for row in rows) for id_, rows in accounts.items() if rows}
    own = sum(max(known.get(id_, 0.0), _recorded_hours(root, chain.name, id_, known=id_ in known)) for id_ in ids)
    return own + sum(hours for id_, hours in known.items() if id_ not in ids)


def over_cap(root: Path, name: str) -> str | None:
    """One line where the chain has reached its cap; None where it has not, or has none. No sacct without a cap."""
    if name not in chains.names(root):
        return None
    chain = chains.read(root, name)
    if chain.limits.gpu_hours is None:
        return None
    used = gpu_hours(root, chain)
    if used < chain.limits.gpu_hours:
        return None
    return f"the chain has used {used:.2f} GPU-hours of the {chain.limits.gpu_hours:g} it may"


def _recorded_hours(root: Path, name: str, id_: str, *, known: bool) -> float:
    """GPU-hours by the job's own record. Of a job without an end that accounting knows (`known`) none: it may have
    died long ago without a record."""
    record = chains.record(root, name, id_)
    if record.start is None or not record.start.get("gpus") or (known and not record.exit):
        return 0.0
    begun = datetime.fromisoformat(record.start["at"])
    ended = datetime.fromisoformat(record.exit["at"]) if record.exit else datetime.now(UTC)
    return float(record.start["gpus"]) * max(0.0, (ended - begun).total_seconds()) / 3600
