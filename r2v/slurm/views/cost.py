"""What a chain has cost: GPU-hours of every life of every attempt, as Slurm accounts them (AllocTRES x ElapsedRaw).

Wasted are the lives that did not end COMPLETED. Part of their work may live on in a checkpoint that the next life
went on from; that is not counted in their favour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from r2v.errors import EnvironmentFault
from r2v.slurm import client
from r2v.slurm.client import Row
from r2v.slurm.healing.classify import ALIVE
from r2v.slurm.views.humanize import table
from r2v.slurm.views.status import files


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One attempt: how often Slurm started it, wall-clock and GPU-hours, and the GPU-hours of lives that failed."""

    job: str
    attempt: int
    id: str
    lives: int
    hours: float
    gpu_hours: float
    wasted: float
    state: str


def spent(name: str, root: Path = Path()) -> list[Spent]:
    """Every attempt of a chain and every job submitted by hand, in order; one sacct. Raises EnvironmentFault where
    accounting is down: nobody else knows what was allotted."""
    chain, records = files(name, root)
    attempts = [
        (job, number, attempt.id)
        for job, one in chain.jobs.items()
        for number, attempt in enumerate(one.attempts, start=1)
    ]
    known = {id_ for _, _, id_ in attempts}
    attempts += [
        (str((record.start or {}).get("job", "?")), 1, id_) for id_, record in records.items() if id_ not in known
    ]
    told = client.accounting([id_ for _, _, id_ in attempts])
    if told.down is not None:
        raise EnvironmentFault(
            f"what a chain cost is known to accounting alone, and that is down: {told.down}; try again later"
        )
    return [_of(job, number, id_, told.jobs.get(id_, [])) for job, number, id_ in attempts]


def _of(name: str, number: int, id_: str, rows: Sequence[Row]) -> Spent:
    lost = [row for row in rows if row.state != "COMPLETED" and (row.state not in ALIVE or row.state == "REQUEUED")]
    return Spent(
        job=name,
        attempt=number,
        id=id_,
        lives=sum(row.elapsed > 0 for row in rows),
        hours=sum(row.elapsed for row in rows) / 3600,
        gpu_hours=sum(row.gpu_hours for row in rows),
        wasted=sum(row.gpu_hours for row in lost),
        state=rows[-1].state.lower() if rows else "",
    )


def lines(name: str, found: Sequence[Spent]) -> list[str]:
    """What `r2v cost` prints of one chain."""
    total, wasted = sum(one.gpu_hours for one in found), sum(one.wasted for one in found)
    share = f"{100 * wasted / total:.0f}%" if total else "none"
    rows = [
        ("job", "try", "id", "lives", "hours", "GPU-h", "wasted", ""),
        *(
            (
                one.job,
                str(one.attempt),
                one.id,
                str(one.lives),
                f"{one.hours:.2f}",
                f"{one.gpu_hours:.2f}",
                f"{one.wasted:.2f}",
                one.state,
            )
            for one in found
        ),
    ]
    return [f"{name}: {total:.2f} GPU-hours, {wasted:.2f} of them wasted ({share})", *table(rows)]


def as_json(name: str, found: Sequence[Spent]) -> dict[str, Any]:
    """The same for a program."""
    return {
        "name": name,
        "gpu_hours": sum(one.gpu_hours for one in found),
        "wasted": sum(one.wasted for one in found),
        "attempts": [asdict(one) for one in found],
    }
