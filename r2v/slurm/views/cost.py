"""The cost of a chain: GPU-hours of every start of every attempt, as Slurm accounts them (AllocTRES x ElapsedRaw).

Wasted are the starts that did not end COMPLETED. Part of their work may survive in a checkpoint that the next one
went on from; that is not counted in their favour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from r2v.console import text_table
from r2v.errors import EnvironmentFault
from r2v.slurm.client import client
from r2v.slurm.client.client import SacctRow
from r2v.slurm.healing.classify import ALIVE
from r2v.slurm.site.headers import Resources
from r2v.slurm.views.status import files


@dataclass(frozen=True, kw_only=True)
class AttemptCost:
    """One attempt: how often Slurm started it, wall-clock and GPU-hours, and the GPU-hours of starts that failed."""

    job: str
    attempt: int
    id: str
    starts: int
    hours: float
    gpu_hours: float
    wasted: float
    state: str
    memory_used: int | None = None
    """Bytes of its largest start, as Slurm measured them."""
    memory_asked: int | None = None
    longest_hours: float = 0.0
    """Of its longest start; `hours_asked` is the time limit of each."""
    hours_asked: float | None = None


def attempt_costs(name: str, root: Path = Path()) -> list[AttemptCost]:
    """Every attempt of a chain, those under earlier configurations too, every job submitted by hand and every array of
    helpers, in order; one sacct. Raises EnvironmentFault where accounting is down: only it knows what was allotted."""
    chain, records = files(name, root)
    attempts = [
        (job, number, attempt.id) for job, made in chain.history.items() for number, attempt in enumerate(made, start=1)
    ]
    known = {id_ for _, _, id_ in attempts}
    attempts += [
        (str((record.start or {}).get("job", "?")), 1, id_) for id_, record in records.items() if id_ not in known
    ]
    arrays = [
        (f"{job} helpers", number, array)
        for job, number, id_ in attempts
        if id_ in records
        for array in records[id_].helpers
    ]
    accounting = client.accounting([id_ for _, _, id_ in (*attempts, *arrays)])
    if accounting.down is not None:
        raise EnvironmentFault(
            f"only accounting knows what a chain cost, and it is down: {accounting.down}; try again later"
        )
    limits = {
        attempt.id: Resources(directives=attempt.resources).time_minutes
        for made in chain.history.values()
        for attempt in made
    }
    helping = [_of(job, number, id_, _tasks(id_, accounting.jobs)) for job, number, id_ in arrays]
    own = [_of(job, number, id_, accounting.jobs.get(id_, []), limits.get(id_, 0)) for job, number, id_ in attempts]
    return own + helping


def _tasks(array: str, jobs: Mapping[str, list[SacctRow]]) -> list[SacctRow]:
    """Every start of every task of an array."""
    return [row for id_, rows in jobs.items() if id_.partition("_")[0] == array for row in rows]


def _of(name: str, number: int, id_: str, rows: Sequence[SacctRow], minutes: int = 0) -> AttemptCost:
    lost = [row for row in rows if row.state != "COMPLETED" and (row.state not in ALIVE or row.state == "REQUEUED")]
    return AttemptCost(
        job=name,
        attempt=number,
        id=id_,
        starts=sum(row.elapsed > 0 for row in rows),
        hours=sum(row.elapsed for row in rows) / 3600,
        gpu_hours=sum(row.gpu_hours for row in rows),
        wasted=sum(row.gpu_hours for row in lost),
        state=rows[-1].state.lower() if rows else "",
        memory_used=max((row.max_rss for row in rows if row.max_rss), default=None),
        memory_asked=max((row.requested for row in rows if row.requested), default=None),
        longest_hours=max((row.elapsed / 3600 for row in rows), default=0.0),
        hours_asked=minutes / 60 or None,
    )


def _used(used: float | None, asked: float | None, unit: str, scale: float = 1.0) -> str:
    """How much of what was asked for an attempt used: "1.2 of 48.0 GB"."""
    if not used or not asked:
        return ""
    return f"{used / scale:.1f} of {asked / scale:.1f} {unit}"


def lines(name: str, costs: Sequence[AttemptCost]) -> list[str]:
    """What `r2v cost` prints of one chain."""
    total, wasted = sum(cost.gpu_hours for cost in costs), sum(cost.wasted for cost in costs)
    share = f"{100 * wasted / total:.0f}%" if total else "none"
    rows = [
        ("job", "try", "id", "starts", "hours", "GPU-h", "wasted", "memory", "time", ""),
        *(
            (
                cost.job,
                str(cost.attempt),
                cost.id,
                str(cost.starts),
                f"{cost.hours:.2f}",
                f"{cost.gpu_hours:.2f}",
                f"{cost.wasted:.2f}",
                _used(cost.memory_used, cost.memory_asked, "GB", 1 << 30),
                _used(cost.longest_hours, cost.hours_asked, "h"),
                cost.state,
            )
            for cost in costs
        ),
    ]
    return [
        f"{name}: {total:.2f} GPU-hours, {wasted:.2f} of them wasted ({share})",
        *(f"  {line}" for line in text_table(rows).splitlines()),
    ]


def as_json(name: str, costs: Sequence[AttemptCost]) -> dict[str, Any]:
    """The costs as JSON."""
    return {
        "name": name,
        "gpu_hours": sum(cost.gpu_hours for cost in costs),
        "wasted": sum(cost.wasted for cost in costs),
        "attempts": [asdict(cost) for cost in costs],
    }
