"""`r2v explain`: a chain's failure in one screen: the job, its kind of failure and best line, healing's actions, the
blocked jobs, and the command to resume with.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from r2v.config import load
from r2v.console import text_table
from r2v.errors import FailureKind, InputError, R2VError, kind_named
from r2v.slurm.chain.chain import ChainJob, folder
from r2v.slurm.chain.job_record import JobRecord
from r2v.slurm.client.sacct import memory
from r2v.slurm.healing.classify import REMEDIES
from r2v.slurm.healing.heal import end_of
from r2v.slurm.healing.retry_policy import MEMORY, NO_MORE, by_half, megabytes, smaller_batches
from r2v.slurm.site.directives import minutes
from r2v.slurm.site.headers import Resources, command_of
from r2v.slurm.submit_missing import next_request
from r2v.slurm.views import logs
from r2v.slurm.views.chain_status import BROKEN, FINISHED, ChainStatus
from r2v.slurm.views.humanize import clock, size
from r2v.slurm.views.states import JobStatus
from r2v.storage.paths import SCRIPTS

VAGUE: tuple[FailureKind, ...] = ("bug", "killed", "unknown", "host_oom")
"""Kinds whose line is less precise than the log."""


def explain(status: ChainStatus, job: str | None = None, root: Path = Path()) -> list[str]:
    """Return the lines for one job, or for the first broken one; if none is, the failures that were healed."""
    chain = status.chain
    if job:
        chosen = [entry for entry in status.jobs if entry.job == job]
    else:
        chosen = [entry for entry in status.jobs if entry.state in BROKEN and entry.by_hand != bool(chain.jobs)]
    if chosen:
        head, sections = _screen(chosen[0], status, root)
    else:
        healed = [line for name, entry in chain.jobs.items() for line in _healing(entry, name)]
        healing = any(entry.state == "healing" for entry in status.jobs)
        head = f"{'a failure is being healed' if healing else 'nothing is broken'} ({status.counts})"
        sections = [("healed", healed)]
    rows = [(label if at == 0 else "", line) for label, lines in sections for at, line in enumerate(lines)]
    return [
        f"{chain.name}: {head}",
        *(f"  {line}" for line in text_table(rows).splitlines()),
        *(f"  ! {line}" for line in status.banners),
    ]


def _screen(failed: JobStatus, status: ChainStatus, root: Path) -> tuple[str, list[tuple[str, list[str]]]]:
    """Return the failed job in a line, and the sections of its screen by label."""
    chain, record = status.chain, status.files.records.get(failed.id)
    job = chain.jobs.get(failed.job)
    kind = f": {failed.kind}" if failed.kind not in (None, failed.state) else ""
    behind = chain.after({failed.job})
    blocked = [other.job for other in status.jobs if other.state == "blocked" and other.job in behind]
    try:
        log = [str(logs.path_of(root, failed.id))] if failed.id else []
    except InputError:  # a job that never began has no log
        log = ["none: it never began, or wrote to another folder"]
    return f"{failed.job} {failed.state}{kind}", [
        ("what", [_what(failed, record, job)]),
        ("error", _from_log(failed, root)),
        ("where", _where(failed, record)),
        ("memory", _memory(failed, job)),
        ("healing", _healing(job) if job else ["none: it was submitted by hand"]),
        ("blocked", [f"{', '.join(blocked)} keep their ids and places in the queue"] if blocked else []),
        ("log", log),
        ("go on", _remedy(failed, status, root) if failed.state in BROKEN else []),
    ]


def _what(failed: JobStatus, record: JobRecord | None, job: ChainJob | None) -> str:
    """Return the most precise line on the failure."""
    last = job.latest if job else None
    answer = last.failure if last is not None and failed.id == last.id else None
    recorded = str((record.exit or {}).get("line") or "") if record else ""
    words = failed.words.removeprefix(f"{failed.kind}:").strip(" ;") if answer is None else answer.line
    line = (answer.line if answer else "") or recorded or words
    return line or f"neither its record nor Slurm says more than: {failed.kind or failed.state}"


def _from_log(failed: JobStatus, root: Path) -> list[str]:
    """Return the end of the first traceback since the job's last start, for kinds in `VAGUE`."""
    if failed.kind not in VAGUE or not failed.id:
        return []
    text = "".join(map(end_of, logs.log_paths(root, failed.id)[-1:]))
    return [line.strip() for line in logs.first_error(logs.starts(text)[-1])[-3:]]


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
    """Return a line for each failed attempt, with healing's action."""
    return [
        f"{name + ' ' if name else ''}attempt {number} ({attempt.id}): {attempt.failure.kind}, "
        f"{attempt.failure.line}; {attempt.failure.action}"
        for number, attempt in enumerate(job.attempts, start=1)
        if attempt.failure
    ]


def _remedy(failed: JobStatus, status: ChainStatus, root: Path) -> list[str]:
    """Return the command to resume with, in a line or two."""
    chain, jobs = status.chain, list(status.own_jobs.values())
    if failed.owner:
        return [f"r2v explain {failed.owner} {failed.job}, which makes it for this chain too"]
    if failed.by_hand:
        return ["mend what the line names, then the same sbatch line again"]
    position = [job.job for job in jobs].index(failed.job)
    before = [job for job in jobs[:position] if job.state not in FINISHED]
    resume = f"r2v resume {chain.name}" + ("" if before else f" --from {failed.job}")
    if failed.state == "not submitted":
        return [f"r2v resume {chain.name}"]
    config, request = None, None
    with suppress(R2VError):  # damaged or missing: a banner reports it
        overrides = latest.overrides if (latest := chain.jobs[failed.job].latest) else ()
        config = load(folder(root, chain.name) / "config.yaml", overrides)
        request = next_request(root, chain, failed.job, config)
    if failed.state == "stuck":
        own = chain.jobs[failed.job].script
        scripts = " or ".join(
            dict.fromkeys(str(SCRIPTS / name) for name in (request.sized_by if request else own, own))
        )
        return [f"mend what the reason names in the header of {scripts} (r2v doctor tells more), then: {resume}"]
    if failed.kind == "cuda_oom" and config is not None:
        # One row with the same effective batch; if it is one already, 4-bit weights.
        smaller = smaller_batches(config, failed.job, smallest=True) or ("policy.load_in_4bit=true",)
        return [f"{resume} --overrides {' '.join(smaller)}"]
    if failed.kind in ("host_oom", "timeout", "interrupted") and request is not None:
        return _larger(failed, chain.jobs[failed.job], request, resume)
    return [REMEDIES[kind_named(failed.kind) or "unknown"].format(resume=resume)]


def _larger(failed: JobStatus, job: ChainJob, request: Resources, resume: str) -> list[str]:
    """Return the command that raises the memory or time that a job ran out of, in the header that sets it; only the
    resume command if the header, or a size learned by healing, is raised already."""
    had = dict(job.latest.resources) if job.latest else {}
    keys = MEMORY if failed.kind == "host_oom" else ("time",)
    key = next((name for name in keys if name in had), keys[0])
    script = command_of(request.sized_by if failed.kind == "host_oom" else job.script)
    if (now := request.directives.get(key)) and now != had.get(key):
        return [resume, f"it asks for {key}={now} then; for another size, first: r2v cluster set {script}.{key}=SIZE"]
    text = had.get(key, "")
    more = str(by_half(minutes(text))) if key == "time" else megabytes(by_half(memory(text) or 0))
    failure = job.latest.failure if job.latest else None
    partition = f"{script}.partition=NAME " if failure and NO_MORE in failure.action else ""
    return [f"r2v cluster set {partition}{script}.{key}={more if text else 'SIZE'} && {resume}"]
