"""The state of one job: alive or ended, and its outcome, from the queue, its own record and accounting.

A job in the queue is alive; any other has ended. Its exit record gives the outcome, unless Slurm killed a part of it
(`r2v.slurm.healing.classify`). A job that accounting does not know yet is not failed; one that is neither queued nor
has recorded its end, long after it began, is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from r2v.console import duration
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Attempt
from r2v.slurm.chain.job_record import JobRecord
from r2v.slurm.client.client import Queued
from r2v.slurm.client.messages import cannot_start
from r2v.slurm.client.sacct import SacctRow, is_alive
from r2v.slurm.healing.classify import Evidence, classify
from r2v.slurm.healing.comparison import NEVER
from r2v.slurm.views.humanize import clock, reason_text
from r2v.slurm.views.sources import SlurmSnapshot

JobState = Literal[
    "done",
    "up to date",
    "running",
    "queued",
    "stuck",
    "waiting",
    "healing",
    "blocked",
    "failed",
    "cancelled",
    "not submitted",
    "unknown",
]
ACCOUNTING_LAG = 120.0
"""Seconds after which accounting should know a job: slurmdbd batches its updates."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The state of one job."""

    job: str
    state: JobState
    words: str = ""
    """The state in a line: progress, reason of waiting, or failure."""
    id: str = ""
    attempt: int = 0
    kind: str | None = None
    """The kind of its failure (`r2v.errors.FailureKind`)."""
    starts: str | None = None
    """Slurm's estimate of its start."""
    progress: dict[str, Any] | None = None
    """Its newest event: step, done, total and figures such as the loss."""
    seconds_left: float | None = None
    peak_bytes: int | None = None
    by_hand: bool = False
    """True if it was submitted by sbatch directly, not by run_all."""
    never: bool = False
    """True if its dependency can never be satisfied, according to Slurm."""
    unanswered: bool = False
    """True if it failed and healing has not decided yet."""
    owner: str = ""
    """The other chain that makes it; "" for this one."""
    helpers: dict[str, int] = field(default_factory=dict)
    """Number of its queued helpers, by Slurm's state."""


def job_status(job: str, attempt: Attempt, record: JobRecord, slurm: SlurmSnapshot, number: int = 1) -> JobStatus:
    """Return the state of an attempt, before healing is considered."""
    rows = slurm.accounting.jobs.get(attempt.id, [])
    queued = (slurm.queue or {}).get(attempt.id)
    state = _alive(queued, record) if queued else _ended(attempt, record, rows[-1] if rows else None, slurm)
    return JobStatus(job=job, id=attempt.id, attempt=number, peak_bytes=_peak(record, rows), **state)


def _alive(queued: Queued, record: JobRecord) -> dict[str, Any]:
    """Return the fields of a queued job's status."""
    if queued.state in ("RUNNING", "COMPLETING", "CONFIGURING"):
        event, left = job_record.progress(record), job_record.seconds_left(record)
        where = f"{queued.elapsed} of {queued.limit}" + (f" on {queued.nodes}" if queued.nodes else "")
        words = ", ".join(part for part in (_activity(event, left), *_waits(record), where) if part)
        return {"state": "running", "progress": event, "seconds_left": left, "words": words}
    if queued.state != "PENDING":
        return {"state": "queued", "words": reason_text(queued.reason or queued.state, queued.id)}
    reason = queued.reason
    if queued.dependency and not reason.startswith(("Dependency", "JobHeld")):
        reason = "Dependency"  # squeue shows the scheduler's last reason, which may be "Priority" or none yet
    words = reason_text(reason, queued.id)
    if cannot_start(reason):
        return {"state": "stuck", "words": f"never starts: {words}"}
    if reason.startswith("Dependency"):
        return {"state": "waiting", "words": words, "never": queued.reason == NEVER}
    starts = queued.start or None
    return {"state": "queued", "starts": starts, "words": f"{words}; starts about {clock(starts)}" if starts else words}


def _ended(attempt: Attempt, record: JobRecord, row: SacctRow | None, slurm: SlurmSnapshot) -> dict[str, Any]:
    """Return the fields of the status of an attempt that has left the queue."""
    late = row is not None and is_alive(row.state)  # accounting lags behind the job's own record
    if record.last_exit is not None or not late:
        final_row = None if late else row
        failure = classify(
            Evidence(exit=record.last_exit, error=record.error, row=final_row, started=record.start is not None)
        )
        if failure is not None:
            state = "cancelled" if failure.kind == "cancelled" else "failed"
            return {"state": state, "kind": failure.kind, "words": failure_text(failure.kind, failure.line)}
    if record.last_exit is not None:
        seconds = row.elapsed if row is not None and row.elapsed else record.seconds
        return {"state": "done", "words": "" if seconds is None else duration(seconds)}
    if slurm.queue is None:
        return {"state": "unknown", "words": "the queue could not be asked, and there is no record of its end"}
    if late:
        return {"state": "running", "words": "has just left the queue"}
    if row is not None:
        return {"state": "failed", "kind": "unknown", "words": f"Slurm says {row.state}, but its own record is missing"}
    if slurm.accounting.down is None and _age(attempt, record) < ACCOUNTING_LAG:
        return {"state": "unknown", "words": "has left the queue, accounting does not know it yet"}
    began = "killed, or its node died" if record.start else "it never began"
    return {"state": "failed", "kind": "unknown", "words": f"ended without a record: {began}"}


def failure_text(kind: str, line: str) -> str:
    """Return a failure in one line: the kind, unless the line begins with it, and the line."""
    return line if line.startswith(kind) else f"{kind}: {line}"


def _age(attempt: Attempt, record: JobRecord) -> float:
    """Return the seconds since the attempt was submitted or last started."""
    times = [text for text in (attempt.submitted_at, (record.start or {}).get("at")) if text]
    if not times:
        return ACCOUNTING_LAG
    return (datetime.now(UTC) - max(datetime.fromisoformat(text) for text in times)).total_seconds()


def _activity(event: Mapping[str, Any] | None, left: float | None) -> str:
    """Return the progress of a running job: step, count, loss, and the time left at its pace."""
    if event is None:
        return ""
    step = str(event.get("what", ""))
    parts = [f"{step} {event.get('done', '')}/{event['total']}" if event.get("total") else step]
    if isinstance(blocks := event.get("blocks_left"), (int, float)):  # only rollout stages have blocks
        parts = [f"{parts[0]} episodes", f"{blocks:.0f} blocks left"]
    if isinstance(event.get("loss"), (int, float)):
        parts.append(f"loss {event['loss']:.4g}")
    return ", ".join([*parts, *([f"{duration(left)} left"] if left else [])])


def _waits(record: JobRecord) -> list[str]:
    """Return the waits of a job, each with its reason, start and end."""
    return [
        f"waits for {wait['wait']} since {clock(wait['at'])}, until {clock(wait['until'])} at most ({wait['why']})"
        for wait in job_record.waiting(record, record.restart, datetime.now(UTC))
    ]


def _peak(record: JobRecord, rows: Sequence[SacctRow]) -> int | None:
    """Return the peak memory of all starts of the job, in bytes; None if unknown."""
    event = job_record.progress(record) or {}
    peaks = [(record.exit or {}).get("peak_rss_bytes"), event.get("peak_rss_bytes"), *(row.max_rss for row in rows)]
    return max((int(peak) for peak in peaks if peak), default=None)
