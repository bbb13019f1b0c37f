"""What broke, in one screen: the job, its class of failure, the first line that tells it, what healing did about it,
who waits for it, and the one command to go on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from r2v.errors import InputError, R2VError
from r2v.slurm.chain import Chain, ChainJob, Record, folder
from r2v.slurm.healing.classify import REMEDIES
from r2v.slurm.views import logs
from r2v.slurm.views.humanize import clock, size
from r2v.slurm.views.states import JobStatus
from r2v.slurm.views.status import BROKEN, ChainStatus

VAGUE = ("code", "killed", "unknown", "host_oom")
"""Classes whose line says less than the log does."""


def explain(
    chain: Chain, status: ChainStatus, records: Mapping[str, Record], job: str | None = None, root: Path = Path()
) -> list[str]:
    """The lines for one job, or for the first of the chain that broke; where none did, what was healed."""
    chosen = (
        [one for one in status.jobs if one.job == job]
        if job
        else [one for one in status.jobs if one.state in BROKEN and one.by_hand != bool(chain.jobs)]
    )
    if not chosen:
        return _nothing_broke(chain, status)
    return _screen(chosen[0], chain, status, records, root)


def _nothing_broke(chain: Chain, status: ChainStatus) -> list[str]:
    states = dict.fromkeys(one.state for one in status.jobs)
    told = ", ".join(f"{sum(one.state == state for one in status.jobs)} {state}" for state in states)
    healed = [line for name, one in chain.jobs.items() for line in _healing(one, name)]
    return [
        f"{chain.name}: nothing is broken ({told})",
        *_labelled("healed", healed),
        *(f"  ! {line}" for line in status.banners),
    ]


def _screen(one: JobStatus, chain: Chain, status: ChainStatus, records: Mapping[str, Record], root: Path) -> list[str]:
    record, job = records.get(one.id), chain.jobs.get(one.job)
    head = f"{chain.name}: {one.job} {one.state}" + (f": {one.kind}" if one.kind not in (None, one.state) else "")
    held = [each.job for each in status.jobs if each.state == "held" and one.job in _above(each.job, chain)]
    try:
        log = [str(logs.path_of(root, one.id))] if one.id else []
    except InputError:
        log = ["none: it never began, or wrote to another folder"]
    rows = (
        ("what", [_what(one, record, job)]),
        ("error", _from_log(one, root)),
        ("where", _where(one, record)),
        ("memory", _memory(one, job)),
        ("healing", _healing(job) if job else ["none: it was submitted by hand"]),
        ("held", [f"{', '.join(held)} keep their ids and places in the queue"] if held else []),
        ("log", log),
        ("go on", [_remedy(one, chain, root)] if one.state in BROKEN else []),
    )
    return [
        head,
        *(line for label, lines in rows for line in _labelled(label, lines)),
        *(f"  ! {line}" for line in status.banners),
    ]


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    return [f"  {label if at == 0 else '':8} {line}" for at, line in enumerate(lines)]


def _what(one: JobStatus, record: Record | None, job: ChainJob | None) -> str:
    """The line that tells the failure best."""
    last = job.latest if job else None
    if last is not None and last.failure is not None and one.id == last.id:
        return last.failure.line
    told = (record.exit or {}).get("line") if record else None
    return str(told or one.words.removeprefix(f"{one.kind}: ") or one.state)


def _from_log(one: JobStatus, root: Path) -> list[str]:
    """The end of the first traceback in the log's last life, where the class alone says little."""
    if one.kind not in VAGUE or not one.id:
        return []
    found = logs.first_error(logs.lives(logs.tail(root, one.id))[-1])
    return [line.strip() for line in found[-3:]]


def _where(one: JobStatus, record: Record | None) -> list[str]:
    if not one.id:
        return []
    start, end = (record.start or {}, record.exit or {}) if record else ({}, {})
    parts = [
        f"job {one.id}",
        f"on {start['host']}" if "host" in start else "",
        f"attempt {one.attempt}",
        f"restart {start['restart']}" if start.get("restart") else "",
        f"ended {clock(str(end['at']))}" if "at" in end else "",
    ]
    return [", ".join(part for part in parts if part)]


def _memory(one: JobStatus, job: ChainJob | None) -> list[str]:
    asked = job.latest.resources.get("mem") if job and job.latest else None
    return [f"{size(one.peak_bytes)} at most" + (f", {asked} asked for" if asked else "")] if one.peak_bytes else []


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
    found: set[str] = set()
    todo = [name]
    while todo:
        job = chain.jobs.get(todo.pop())
        new = set(job.needs) - found if job else set()
        found |= new
        todo += new
    return found


def _remedy(one: JobStatus, chain: Chain, root: Path) -> str:
    if one.by_hand:
        return "mend what the line names, then the same sbatch line again"
    if one.state == "not submitted":
        return f"r2v resume {chain.name}"
    if one.kind == "cuda_oom" and (smaller := _smaller(one.job, chain, root)):
        return f"r2v resume {chain.name} --from {one.job} --overrides {smaller}"
    remedy = next((text for kind, text in REMEDIES.items() if kind == one.kind), REMEDIES["unknown"])
    return remedy.format(name=chain.name, job=one.job)


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
