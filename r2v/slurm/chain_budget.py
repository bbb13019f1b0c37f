"""The budget of all chains of a checkout: `max_gpu_hours` of its site profile.

A submission that could use more than is left of it, by the time limits of what it asks and of what is in the queue, is
refused; healing ends where it is used up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from r2v.errors import UsageError
from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.chain import Attempt, Chain
from r2v.slurm.headers import Resources
from r2v.slurm.healing.gpu_hours import budget, used_by_all
from r2v.slurm.site_profile import SITE


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
    asked = sum(_hours(resources[name]) for name in wanted if (chain.name, name) not in queued)
    waiting = sum(map(_asked, queued.values()))
    used = used_by_all(root, without={attempt.id for attempt in queued.values()})
    if used + waiting + asked > cap:
        raise UsageError(
            f"{chain.name}: up to {asked:.1f} GPU-hours, beside {used:.1f} used and {waiting:.1f} in the queue; all "
            f"chains may use {cap:g} (max_gpu_hours in {SITE}); raise it, or shorten --time in the headers. Nothing "
            "was submitted"
        )


def _asked(attempt: Attempt) -> float:
    return _hours(Resources(directives=attempt.resources))


def _hours(resources: Resources) -> float:
    return resources.gpus * resources.time_minutes / 60
