"""The text of a status: its table with banners as `r2v status` prints it, and the same as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from r2v.console import text_table
from r2v.slurm.views.humanize import clock
from r2v.slurm.views.states import JobStatus, memory_text
from r2v.slurm.views.status import ChainStatus


def lines(status: ChainStatus) -> list[str]:
    """What `r2v status` prints of one chain."""
    summary = ", ".join(f"{count} {state}" for state, count in Counter(job.state for job in status.jobs).items())
    head = f"{status.name}: {summary}" + (
        f"  (submitted {clock(status.submitted)}, commit {status.commit}, code {status.snapshot or 'live'})"
        if status.submitted
        else ""
    )
    rows = [
        ("job", "state", "id", "try", "memory", ""),
        *(
            (
                job.job + (" (sbatch)" if job.by_hand else ""),
                job.state,
                job.id,
                str(job.attempt or ""),
                memory_text(job),
                _with_place(job, status),
            )
            for job in status.jobs
        ),
    ]
    table = [f"  {line}" for line in text_table(rows).splitlines()]
    hint = [f"  r2v explain {status.name}"] if status.exit_code == 1 else []
    return [head, *table, *(f"  ! {line}" for line in status.banners), *hint]


def _with_place(job: JobStatus, status: ChainStatus) -> str:
    """What a job does, and, while it runs, which of how many stages it is."""
    if job.state != "running" or job.by_hand:
        return job.words
    own = [one.job for one in status.jobs if not one.by_hand]
    return ", ".join(filter(None, (f"stage {own.index(job.job) + 1} of {len(own)}", job.words)))


def as_json(status: ChainStatus) -> dict[str, Any]:
    """The status as JSON."""
    return {
        "name": status.name,
        "exit_code": status.exit_code,
        "submitted": status.submitted,
        "commit": status.commit,
        "snapshot": status.snapshot,
        "banners": status.banners,
        "jobs": [asdict(job) for job in status.jobs],
    }
