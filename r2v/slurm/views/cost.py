"""The cost of a chain: GPU- and CPU-hours of every start by Slurm's accounting (AllocTRES x ElapsedRaw), and the
dollars billed to its journals.

Starts that did not end COMPLETED count as wasted, even if the next start resumed from their checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from r2v.console import text_table
from r2v.errors import EnvironmentFault
from r2v.slurm.client.sacct import SacctRow, is_alive
from r2v.slurm.site.headers import Resources
from r2v.slurm.views.chain_status import ChainStatus
from r2v.slurm.views.humanize import paid


@dataclass(frozen=True, kw_only=True)
class AttemptCost:
    """One attempt: number of starts, wall-clock, GPU- and CPU-hours, and the GPU-hours of failed starts."""

    job: str
    attempt: int
    id: str
    starts: int
    hours: float
    gpu_hours: float
    cpu_hours: float
    wasted: float
    state: str
    memory_used: int | None = None
    """Peak bytes of its largest start, as measured by Slurm."""
    memory_asked: int | None = None
    longest_hours: float = 0.0
    """Hours of its longest start; `hours_asked` is the time limit."""
    hours_asked: float | None = None


def attempt_costs(status: ChainStatus) -> list[AttemptCost]:
    """Return the cost of every attempt of a chain, earlier configurations, directly submitted jobs and helper arrays
    included, in order; its sources must be gathered with `costs`. Raises EnvironmentFault without accounting."""
    rows = status.slurm.accounting.jobs
    if status.slurm.accounting.down is not None:
        raise EnvironmentFault(
            f"only accounting knows what a chain cost, and it is down: {status.slurm.accounting.down}; try again later"
        )
    own, helping = list[AttemptCost](), list[AttemptCost]()
    for job, number, attempt in status.files.attempts:
        limit = Resources(directives=attempt.resources).time_minutes
        own.append(_of(job, number, attempt.id, rows.get(attempt.id, []), limit))
        for array in status.files.records[attempt.id].helpers:
            starts = [row for id_, tasks in rows.items() if id_.partition("_")[0] == array for row in tasks]
            helping.append(_of(f"{job} helpers", number, array, starts))
    return own + helping


def _of(name: str, number: int, id_: str, rows: Sequence[SacctRow], minutes: int = 0) -> AttemptCost:
    lost = [row for row in rows if row.state != "COMPLETED" and (not is_alive(row.state) or row.state == "REQUEUED")]
    return AttemptCost(
        job=name,
        attempt=number,
        id=id_,
        starts=sum(row.elapsed > 0 for row in rows),
        hours=sum(row.elapsed for row in rows) / 3600,
        gpu_hours=sum(row.gpu_hours for row in rows),
        cpu_hours=sum(row.cpu_hours for row in rows),
        wasted=sum(row.gpu_hours for row in lost),
        state=rows[-1].state.lower() if rows else "",
        memory_used=max((row.max_rss for row in rows if row.max_rss), default=None),
        memory_asked=max((row.requested for row in rows if row.requested), default=None),
        longest_hours=max((row.elapsed / 3600 for row in rows), default=0.0),
        hours_asked=minutes / 60 or None,
    )


def _used(used: float | None, requested: float | None, unit: str, scale: float = 1.0) -> str:
    """Return used and requested amount of an attempt: "1.2 of 48.0 GB"; "" if unknown."""
    if not used or not requested:
        return ""
    return f"{used / scale:.1f} of {requested / scale:.1f} {unit}"


def lines(name: str, costs: Sequence[AttemptCost], usd: float) -> list[str]:
    """Return the lines of `r2v cost` about one chain. usd: dollars billed to its journals."""
    cpu_hours = sum(cost.cpu_hours for cost in costs)
    total, wasted = sum(cost.gpu_hours for cost in costs), sum(cost.wasted for cost in costs)
    share = f"{100 * wasted / total:.0f}%" if total else "none"
    rows = [
        (
            *(cost.job, str(cost.attempt), cost.id, str(cost.starts)),
            *(f"{hours:.2f}" for hours in (cost.hours, cost.gpu_hours, cost.wasted, cost.cpu_hours)),
            _used(cost.memory_used, cost.memory_asked, "GB", 1 << 30),
            _used(cost.longest_hours, cost.hours_asked, "h"),
            cost.state,
        )
        for cost in costs
    ]
    table = text_table(
        [("job", "try", "id", "starts", "hours", "GPU-h", "wasted", "CPU-h", "memory", "time", ""), *rows]
    )
    return [
        f"{name}: {total:.2f} GPU-hours, {wasted:.2f} of them wasted ({share}); {cpu_hours:.2f} CPU-hours; {paid(usd)}",
        *(f"  {line}" for line in table.splitlines()),
    ]


def as_json(name: str, costs: Sequence[AttemptCost], usd: float) -> dict[str, Any]:
    """Return the costs as JSON."""
    return {
        "name": name,
        "gpu_hours": sum(cost.gpu_hours for cost in costs),
        "wasted": sum(cost.wasted for cost in costs),
        "cpu_hours": sum(cost.cpu_hours for cost in costs),
        "usd": usd,
        "attempts": [asdict(cost) for cost in costs],
    }
