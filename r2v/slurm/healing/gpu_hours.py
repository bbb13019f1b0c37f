"""The GPU-hours that a chain has used, for the budget that ends its healing (--max-gpu-hours), and those of all chains,
for theirs (`max_gpu_hours` of the site profile).

A submission that could use more than is left of the budget of all chains, by the time limits of what it asks and of
what is in the queue, is refused; healing ends where it is used up.
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
    """GPU-hours of all attempts so far, those `without` aside, their restarts and helpers included: what sacct
    allotted, in whole seconds, or what the jobs wrote themselves (their last start to its end) where that is more, or
    where sacct does not know of them: accounting may be down, or come late."""
    ids = [attempt.id for known in chain.history.values() for attempt in known if attempt.id not in without]
    arrays = [array for id_ in ids for array in job_record.record(root, chain.name, id_).helpers]
    accounts = client.accounting([*ids, *arrays]).jobs
    known = {id_: sum(row.gpu_hours for row in rows) for id_, rows in accounts.items() if rows}
    own = sum(max(known.get(id_, 0.0), _recorded_hours(root, chain.name, id_, known=id_ in known)) for id_ in ids)
    return own + sum(hours for id_, hours in known.items() if id_ not in ids)


def over_cap(root: Path, name: str) -> str | None:
    """One line where the chain has reached its cap; None where it has not, or has none. No sacct without a cap.

    Raises EnvironmentFault where the site profile or the file of another chain cannot be read: it may be half edited,
    and the next look tells."""
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
    """The GPU-hours that all chains of this checkout may use; None: no cap. Raises InputError for what is none."""
    text = project_profile(root).max_gpu_hours
    if text and not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise InputError(f"{root / SITE}: max_gpu_hours is {text!r}; must be a number of hours, such as 500")
    return float(text) if text else None


def used_by_all(root: Path, without: Collection[str] = ()) -> float:
    """GPU-hours of every chain so far, those of the Slurm jobs `without` aside."""
    return sum(gpu_hours(root, chains.read(root, name), without) for name in chains.names(root))


def require_room(root: Path, chain: Chain, wanted: Sequence[str], resources: Mapping[str, Resources]) -> None:
    """Raises UsageError where the jobs that are to be submitted might use more GPU-hours than all chains may."""
    cap = budget(root)
    if cap is None or not wanted:
        return
    rows = {row.id for row in client.queue()}
    known = [chains.read(root, name) for name in chains.names(root)]
    queued = {
        (one.name, job): entry.latest
        for one in known
        for job, entry in one.jobs.items()
        if entry.latest is not None and entry.latest.id in rows
    }
    asked = sum(resources[name].gpu_hours for name in wanted if (chain.name, name) not in queued)
    waiting = sum(Resources(directives=attempt.resources).gpu_hours for attempt in queued.values())
    used = used_by_all(root, without={attempt.id for attempt in queued.values()})
    if used + waiting + asked > cap:
        raise UsageError(
            f"{chain.name}: up to {asked:.1f} GPU-hours, beside {used:.1f} used and {waiting:.1f} in the queue; all "
            f"chains may use {cap:g} (max_gpu_hours in {SITE}); raise it, or shorten --time in the headers. Nothing "
            "was submitted"
        )


def _recorded_hours(root: Path, name: str, id_: str, *, known: bool) -> float:
    """GPU-hours by the job's own record. Of a job without an end that accounting knows (`known`) none: it may have
    died long ago without a record."""
    record = job_record.record(root, name, id_)
    if record.start is None or not record.start.get("gpus") or (known and not record.exit):
        return 0.0
    return float(record.start["gpus"]) * (record.seconds or 0.0) / 3600
