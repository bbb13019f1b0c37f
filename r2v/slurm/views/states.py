"""The state of one job: alive or ended, and how it ended, from the queue, its own record, and accounting.

What is in the queue is alive. What is not has ended: its own exit record says how, and Slurm has the last word where
it killed a part of the job (`r2v.slurm.healing.classify`). A job that accounting does not know yet has not failed for
that; one that is neither in the queue nor has a record of its end, long after it began, has.
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
"""Seconds in which accounting may not yet know of a job."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """One job as it stands."""

    job: str
    state: JobState
    words: str = ""
    """The state in a line: progress, why it waits, or how it failed."""
    id: str = ""
    attempt: int = 0
    kind: str | None = None
    """The kind of its failure (`r2v.errors.FailureKind`)."""
    starts: str | None = None
    """When Slurm thinks it will start."""
    progress: dict[str, Any] | None = None
    """Its newest event: what, done, total and figures such as the loss."""
    seconds_left: float | None = None
    peak_bytes: int | None = None
    by_hand: bool = False
    """Submitted by an sbatch line, not by run_all."""
    never: bool = False
    """True if it waits, according to Slurm, for what can't come."""
    unanswered: bool = False
    """True if it failed, and nothing is decided about it yet."""
    owner: str = ""
    """The chain that makes it, where another one does."""
    helpers: dict[str, int] = field(default_factory=dict)
    """Helpers of its array that are in the queue, by Slurm's state."""


def job_status(job: str, attempt: Attempt, record: JobRecord, slurm: SlurmSnapshot, number: int = 1) -> JobStatus:
    """The state of an attempt, healing aside."""
    rows = slurm.accounting.jobs.get(attempt.id, [])
    queued = (slurm.queue or {}).get(attempt.id)
    state = _alive(queued, record) if queued else _ended(attempt, record, rows[-1] if rows else None, slurm)
    return JobStatus(job=job, id=attempt.id, attempt=number, peak_bytes=_peak(record, rows), **state)


def _alive(queued: Queued, record: JobRecord) -> dict[str, Any]:
    """The state, and what belongs to it, of a job that is in the queue."""
    if queued.state in ("RUNNING", "COMPLETING", "CONFIGURING"):
        event, left = job_record.progress(record), job_record.seconds_left(record)
        where = f"{queued.elapsed} of {queued.limit}" + (f" on {queued.nodes}" if queued.nodes else "")
        words = ", ".join(part for part in (_activity(event, left), *_waits(record), where) if part)
        return {"state": "running", "progress": event, "seconds_left": left, "words": words}
    if queued.state != "PENDING":
        return {"state": "queued", "words": reason_text(queued.reason or queued.state, queued.id)}
    reason = queued.reason
    if queued.dependency and not reason.startswith(("Dependency", "JobHeld")):
        reason = "Dependency"  # squeue says what the scheduler met last, at times "Priority" or nothing yet
    words = reason_text(reason, queued.id)
    if cannot_start(reason):
        return {"state": "stuck", "words": f"never starts: {words}"}
    if reason.startswith("Dependency"):
        return {"state": "waiting", "words": words, "never": queued.reason == NEVER}
    starts = queued.start or None
    return {"state": "queued", "starts": starts, "words": f"{words}; starts about {clock(starts)}" if starts else words}


def _ended(attempt: Attempt, record: JobRecord, row: SacctRow | None, slurm: SlurmSnapshot) -> dict[str, Any]:
    """The end of an attempt that is not in the queue."""
    late = row is not None and is_alive(row.state)  # accounting, which comes behind the job's own record
    if record.last_exit is not None or not late:
        told = None if late else row
        failure = classify(
            Evidence(exit=record.last_exit, error=record.error, row=told, started=record.start is not None)
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
    """A failure in one line: its kind, unless the line begins with it, and the line."""
    return line if line.startswith(kind) else f"{kind}: {line}"


def _age(attempt: Attempt, record: JobRecord) -> float:
    """Seconds since the attempt was submitted or last started."""
    times = [text for text in (attempt.submitted_at, (record.start or {}).get("at")) if text]
    if not times:
        return ACCOUNTING_LAG
    return (datetime.now(UTC) - max(datetime.fromisoformat(text) for text in times)).total_seconds()


def _activity(event: Mapping[str, Any] | None, left: float | None) -> str:
    """The progress of a running job: its step, how far it is, its loss, and the time left at its pace."""
    if event is None:
        return ""
    step = str(event.get("what", ""))
    parts = [f"{step} {event.get('done', '')}/{event['total']}" if event.get("total") else step]
    if isinstance(blocks := event.get("blocks_left"), (int, float)):  # of a stage that plays
        parts = [f"{parts[0]} episodes", f"{blocks:.0f} blocks left"]
    if isinstance(event.get("loss"), (int, float)):
        parts.append(f"loss {event['loss']:.4g}")
    return ", ".join([*parts, *([f"{duration(left)} left"] if left else [])])


def _waits(record: JobRecord) -> list[str]:
    """The waits of a job, each with its reason, start and end."""
    return [
        f"waits for {wait['wait']} since {clock(wait['at'])}, until {clock(wait['until'])} at most ({wait['why']})"
        for wait in job_record.waiting(record, record.restart, datetime.now(UTC))
    ]


def _peak(record: JobRecord, rows: Sequence[SacctRow]) -> int | None:
    """The most memory, in bytes, that any start of the job was seen to use."""
    event = job_record.progress(record) or {}
    peaks = [(record.exit or {}).get("peak_rss_bytes"), event.get("peak_rss_bytes"), *(row.max_rss for row in rows)]
    return max((int(peak) for peak in peaks if peak), default=None)
