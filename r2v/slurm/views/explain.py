"""`r2v explain`: what broke, in one screen.

The job, its kind of failure, the line that tells it best, what healing did about it, which jobs it blocks, and the one
command to go on with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from r2v.errors import FailureKind, InputError, R2VError
from r2v.slurm.chain.chain import Chain, ChainJob, folder
from r2v.slurm.chain.job_record import JobRecord
from r2v.slurm.healing.classify import REMEDIES
from r2v.slurm.views import logs
from r2v.slurm.views.humanize import clock, size
from r2v.slurm.views.states import JobStatus
from r2v.slurm.views.status import BROKEN, ChainStatus

VAGUE: tuple[FailureKind, ...] = ("bug", "killed", "unknown", "host_oom")
"""Kinds whose line says less than the log does."""


def explain(
    chain: Chain, status: ChainStatus, records: Mapping[str, JobRecord], job: str | None = None, root: Path = Path()
) -> list[str]:
    """The lines for one job, or for the first of the chain that broke; where none did, what was healed."""
    chosen = (
        [entry for entry in status.jobs if entry.job == job]
        if job
        else [entry for entry in status.jobs if entry.state in BROKEN and entry.by_hand != bool(chain.jobs)]
    )
    if not chosen:
        return _nothing_broke(chain, status)
    return _screen(chosen[0], chain, status, records, root)


def _nothing_broke(chain: Chain, status: ChainStatus) -> list[str]:
    states = Counter(job.state for job in status.jobs)
    summary = ", ".join(f"{count} {state}" for state, count in states.items())
    healed = [line for name, job in chain.jobs.items() for line in _healing(job, name)]
    return [
        f"{chain.name}: nothing is broken ({summary})",
        *_labelled("healed", healed),
        *(f"  ! {line}" for line in status.banners),
    ]


def _screen(
    failed: JobStatus, chain: Chain, status: ChainStatus, records: Mapping[str, JobRecord], root: Path
) -> list[str]:
    record, job = records.get(failed.id), chain.jobs.get(failed.job)
    kind = f": {failed.kind}" if failed.kind not in (None, failed.state) else ""
    blocked = [
        other.job for other in status.jobs if other.state == "blocked" and failed.job in _above(other.job, chain)
    ]
    try:
        log = [str(logs.path_of(root, failed.id))] if failed.id else []
    except InputError:
        log = ["none: it never began, or wrote to another folder"]
    sections = (
        ("what", [_what(failed, record, job)]),
        ("error", _from_log(failed, root)),
        ("where", _where(failed, record)),
        ("memory", _memory(failed, job)),
        ("healing", _healing(job) if job else ["none: it was submitted by hand"]),
        ("blocked", [f"{', '.join(blocked)} keep their ids and places in the queue"] if blocked else []),
        ("log", log),
        ("go on", [_remedy(failed, chain, root)] if failed.state in BROKEN else []),
    )
    return [
        f"{chain.name}: {failed.job} {failed.state}{kind}",
        *(line for label, lines in sections for line in _labelled(label, lines)),
        *(f"  ! {line}" for line in status.banners),
    ]


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    return [f"  {label if index == 0 else '':8} {line}" for index, line in enumerate(lines)]


def _what(failed: JobStatus, record: JobRecord | None, job: ChainJob | None) -> str:
    """The line that tells the failure best."""
    last = job.latest if job else None
    answer = last.failure if last is not None and failed.id == last.id else None
    recorded = str((record.exit or {}).get("line") or "") if record else ""
    words = failed.words.removeprefix(f"{failed.kind}:").strip(" ;") if answer is None else answer.line
    told = (answer.line if answer else "") or recorded or words
    return told or f"neither its record nor Slurm says more than: {failed.kind or failed.state}"


def _from_log(failed: JobStatus, root: Path) -> list[str]:
    """The end of the first traceback since the job last started, where the kind alone says little."""
    if failed.kind not in VAGUE or not failed.id:
        return []
    last_start = logs.starts(logs.tail(root, failed.id))[-1]
    return [line.strip() for line in logs.first_error(last_start)[-3:]]


def _where(failed: JobStatus, record: JobRecord | None) -> list[str]:
    if not failed.id:
        return []
    start, end = (record.start or {}, record.exit or {}) if record else ({}, {})
    parts = [
        f"job {failed.id}",
        f"on {start['host']}" if "host" in start else "",
        f"attempt {failed.attempt}",
        f"restart {start['restart']}" if start.get("restart") else "",
        f"ended {clock(str(end['at']))}" if "at" in end else "",
    ]
    return [", ".join(part for part in parts if part)]


def _memory(failed: JobStatus, job: ChainJob | None) -> list[str]:
    requested = job.latest.resources.get("mem") if job and job.latest else None
    if not failed.peak_bytes:
        return []
    return [f"{size(failed.peak_bytes)} at most" + (f", {requested} asked for" if requested else "")]


def _healing(job: ChainJob, name: str = "") -> list[str]:
    """Attempt by attempt: how it failed, and what was done about it."""
    return [
        f"{name + ' ' if name else ''}attempt {number} ({attempt.id}): {attempt.failure.kind}, "
        f"{attempt.failure.line}; {attempt.failure.action}"
        for number, attempt in enumerate(job.attempts, start=1)
        if attempt.failure
    ]


def _above(name: str, chain: Chain) -> set[str]:
    """All that a job waits for, directly or not."""
    above: set[str] = set()
    todo = [name]
    while todo:
        job = chain.jobs.get(todo.pop())
        new = set(job.needs) - above if job else set()
        above |= new
        todo += new
    return above


def _remedy(failed: JobStatus, chain: Chain, root: Path) -> str:
    if failed.owner:
        return f"r2v explain {failed.owner} {failed.job}, which makes it for this chain too"
    if failed.by_hand:
        return "mend what the line names, then the same sbatch line again"
    if failed.state == "not submitted":
        return f"r2v resume {chain.name}"
    if failed.kind == "cuda_oom" and (smaller := _smaller(failed.job, chain, root)):
        return f"r2v resume {chain.name} --from {failed.job} --overrides {smaller}"
    remedy = next((text for kind, text in REMEDIES.items() if kind == failed.kind), REMEDIES["unknown"])
    return remedy.format(name=chain.name, job=failed.job)


def _smaller(job: str, chain: Chain, root: Path) -> str:
    """Overrides with the smallest micro-batch, the effective batch as it was; 4-bit weights where it is that
    already; "" where the configuration cannot be read."""
    from r2v.config import PHASES, load

    latest = chain.jobs[job].latest
    try:
        config = load(folder(root, chain.name) / "config.yaml", latest.overrides if latest else ())
    except R2VError:
        return ""
    phase = next((name for name in PHASES if name == job), None)
    if phase is None:
        return "rollout.batch_size=1"
    knobs = config.training.phase(phase)
    if knobs.batch_size == 1:
        return "policy.load_in_4bit=true"
    return (
        f"training.{phase}.batch_size=1 training.{phase}.gradient_accumulation_steps="
        f"{knobs.batch_size * knobs.gradient_accumulation_steps}"
    )
