"""GPU-hours used by a chain, for the cap on its healing (--max-gpu-hours), and by all chains of a checkout, for theirs
(`max_gpu_hours` of the site profile).

A submission is refused if it could exceed the cap of all chains, by its own time limits and those of queued jobs;
healing stops once a cap is reached.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Chain
from r2v.slurm.client import client
from r2v.slurm.site.headers import Resources
from r2v.slurm.site.site_profile import SITE, project_profile


def gpu_hours(root: Path, chain: Chain, without: Collection[str] = ()) -> float:
    """Return the GPU-hours of all attempts except `without`, restarts and helpers included: the larger of sacct's
    allocation and the job's own record of its last start, since accounting may be down or late."""
    ids = [attempt.id for attempts in chain.history.values() for attempt in attempts if attempt.id not in without]
    arrays = [array for id_ in ids for array in job_record.record(root, chain.name, id_).helpers]
    accounts = client.accounting([*ids, *arrays]).jobs
    booked = {id_: sum(row.gpu_hours for row in rows) for id_, rows in accounts.items() if rows}
    own = sum(max(booked.get(id_, 0.0), _recorded_hours(root, chain.name, id_, booked=id_ in booked)) for id_ in ids)
    return own + sum(hours for id_, hours in booked.items() if id_ not in ids)


def over_cap(root: Path, name: str) -> str | None:
    """Return one line if the chain, or all chains together, have reached a cap; else None. No sacct without a cap.

    Raises EnvironmentFault if the site profile or another chain's file cannot be read: it may be half edited, and the
    next reconciliation tries again."""
    if (chain := chains.find(root, name)) is None:
        return None
    if chain.limits.gpu_hours is not None and (used := gpu_hours(root, chain)) >= chain.limits.gpu_hours:
        return f"the chain has used {used:.2f} GPU-hours of the {chain.limits.gpu_hours:g} it may"
    try:
        cap = budget(root)
        used = 0.0 if cap is None else used_by_all(root)
    except InputError as error:
        raise EnvironmentFault(f"the cap on GPU-hours of all chains is not known: {error}") from None
    if cap is not None and used >= cap:
        return f"all chains have used {used:.2f} GPU-hours of the {cap:g} they may (max_gpu_hours in {SITE})"
    return None


def budget(root: Path) -> float | None:
    """Return the cap on GPU-hours of all chains of this checkout; None for none. Raises InputError for no number."""
    text = project_profile(root).max_gpu_hours
    if text and not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise InputError(f"{root / SITE}: max_gpu_hours is {text!r}; must be a number of hours, such as 500")
    return float(text) if text else None


def used_by_all(root: Path, without: Collection[str] = ()) -> float:
    """Return the GPU-hours of every chain so far, except the Slurm jobs `without`."""
    return sum(gpu_hours(root, chains.read(root, name), without) for name in chains.names(root))


def require_room(root: Path, chain: Chain, due: Sequence[str], resources: Mapping[str, Resources]) -> None:
    """Raise UsageError if the jobs to submit might exceed the cap on GPU-hours of all chains."""
    cap = budget(root)
    if cap is None or not due:
        return
    rows = {row.id for row in client.queue()}
    every_chain = [chains.read(root, name) for name in chains.names(root)]
    queued = {
        (other.name, job): entry.latest
        for other in every_chain
        for job, entry in other.jobs.items()
        if entry.latest is not None and entry.latest.id in rows
    }
    requested = sum(resources[name].gpu_hours for name in due if (chain.name, name) not in queued)
    waiting = sum(Resources(directives=attempt.resources).gpu_hours for attempt in queued.values())
    used = used_by_all(root, without={attempt.id for attempt in queued.values()})
    if used + waiting + requested > cap:
        raise UsageError(
            f"{chain.name}: up to {requested:.1f} GPU-hours, with {used:.1f} used and {waiting:.1f} in the queue; all "
            f"chains may use {cap:g} (max_gpu_hours in {SITE}); raise it, or shorten --time in the headers. Nothing "
            "was submitted"
        )


def _recorded_hours(root: Path, name: str, id_: str, *, booked: bool) -> float:
    """Return the GPU-hours by the job's own record; 0 for a job that accounting knows (`booked`) and that recorded no
    end: it may have died long ago."""
    record = job_record.record(root, name, id_)
    if record.start is None or not record.start.get("gpus") or (booked and not record.exit):
        return 0.0
    return float(record.start["gpus"]) * (record.seconds or 0.0) / 3600
