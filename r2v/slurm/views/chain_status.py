"""The status of whole chains, on which all views rest: the state of each job, and warnings.

    sources = settled(["desk_noisy"])          # reconciles the chain first if it is out of line
    status = statuses(sources)[0]              # status.jobs, status.banners, status.exit_code

Exit code 0: all is done. 1: a job failed, was cancelled or was never submitted, and no healing is under way.
10: active. 5: squeue did not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from r2v.config import load
from r2v.errors import EnvironmentFault, InputError, R2VError
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob, require_configuration
from r2v.slurm.client import client
from r2v.slurm.healing.reconcile import try_reconcile
from r2v.slurm.submit_missing import changes, next_request
from r2v.slurm.views.humanize import clock
from r2v.slurm.views.sources import ChainFiles, SlurmSnapshot, ViewSources, gather
from r2v.slurm.views.states import JobStatus, failure_text, job_status
from r2v.storage.lease import holder

FINISHED = frozenset(("done", "up to date"))
BROKEN = frozenset(("failed", "stuck", "cancelled", "not submitted"))
ACTIVE = 10
"""The exit code of a chain with active jobs."""
LOOKS = 3
"""Attempts to settle a chain that another process is changing: the queue's answer may be older than its files."""


@dataclass(frozen=True, kw_only=True)
class ChainStatus:
    """The state of a chain: its jobs in order, and warnings."""

    files: ChainFiles
    slurm: SlurmSnapshot
    jobs: list[JobStatus]
    banners: list[str]
    attendant: str = ""
    """The process that holds the chain's lease while a part of it is still to be reconciled; "" for none."""

    @property
    def chain(self) -> Chain:
        """The chain as it was last written."""
        return self.files.chain

    @property
    def own_jobs(self) -> dict[str, JobStatus]:
        """By name: the chain's jobs, without those submitted by sbatch directly."""
        return {job.job: job for job in self.jobs if not job.by_hand}

    @property
    def counts(self) -> str:
        """Number of jobs by state, as text: `2 done, 1 running`."""
        return ", ".join(f"{count} {state}" for state, count in Counter(job.state for job in self.jobs).items())

    @property
    def exit_code(self) -> int:
        """0 done, 1 broken for good, 10 active, 5 unknown."""
        states = {job.state for job in self.own_jobs.values()} or {job.state for job in self.jobs}
        broken = {"failed", "stuck", "cancelled"} if self.attendant else BROKEN | {"blocked"}
        if states & broken:
            return 1
        if "unknown" in states and self.slurm.queue_down:
            return EnvironmentFault.exit_code
        return 0 if states <= FINISHED else ACTIVE


def overall(codes: Iterable[int]) -> int:
    """Return the exit code of several chains together: the worst counts."""
    present = set(codes)
    return next((code for code in (1, EnvironmentFault.exit_code, ACTIVE) if code in present), 0)


def statuses(sources: ViewSources, root: Path = Path()) -> list[ChainStatus]:
    """Return the status of every shown chain."""
    return [fold(sources.files[name], sources.slurm, root, sources.files) for name in sources.shown]


def fold(files: ChainFiles, slurm: SlurmSnapshot, root: Path, others: Mapping[str, ChainFiles]) -> ChainStatus:
    """Return the status of one chain; a shared stage has the state of its owner among the `others`."""
    chain = files.chain
    jobs = {
        name: _of_owner(name, job, others, slurm) if job.is_shared else _of(name, job, files, slurm)
        for name, job in chain.jobs.items()
    }
    attendant = _attendant(chain, jobs.values(), root)
    helpers: dict[str, Counter[str]] = {}
    for row in client.of_chain((slurm.queue or {}).values(), chain.name, root, mark=client.HELPERS_MARK):
        helpers.setdefault(row.comment.rpartition("/")[2], Counter())[row.state] += 1
    for name, job in jobs.items():
        if attendant and job.state == "failed" and job.unanswered:
            job = replace(job, state="healing", words=f"{job.words}; {attendant} is at it")
        if job.state == "waiting":
            job = _waiting(job, chain, jobs, attendant)
        if job.owner:
            job = replace(job, words=f"made by {job.owner}" + (f": {job.words}" if job.words else ""))
        if counts := helpers.get(name):
            listed = " and ".join(f"{count} {state.lower()}" for state, count in sorted(counts.items()))
            job = replace(job, helpers=dict(counts), words=f"{job.words}, helpers: {listed}")
        jobs[name] = job
    by_hand = [
        replace(job_status(job, attempt, files.records[attempt.id], slurm), by_hand=True)
        for job, _, attempt in files.attempts
        if attempt.id not in chain.slurm_ids
    ]
    banners = [*_banners(chain, jobs.values(), slurm, root, attendant), *_edited(chain, jobs.values(), root)]
    return ChainStatus(files=files, slurm=slurm, jobs=[*jobs.values(), *by_hand], attendant=attendant, banners=banners)


def settled(chain_names: Sequence[str], root: Path = Path(), *, costs: bool = False) -> ViewSources:
    """Return the sources of these chains, gathered again after chains that were out of line are reconciled."""
    for _ in range(LOOKS):
        sources = gather(chain_names, root, costs=costs)
        due = [status.chain for status in statuses(sources, root) if _out_of_line(status, root)]
        if not due:
            return sources
        if not [chain for chain in due if try_reconcile(root, chain.name)]:
            break
    return gather(chain_names, root, costs=costs)


def _out_of_line(status: ChainStatus, root: Path) -> bool:
    """True if a chain needs reconciling, by its files and the queue."""
    chain, queue = status.chain, status.slurm.queue
    if queue is None or not chain.jobs or not chain.is_mine:
        return False
    unrecorded = {row.id for row in client.of_chain(queue.values(), chain.name, root)} - chain.slurm_ids
    unanswered = any(job.unanswered and not job.owner for job in status.jobs)
    ended = FINISHED | {"not submitted", "failed"}
    return bool(
        unrecorded
        or (unanswered and not chain.cancelled)
        or any(job.state in ("blocked", "healing") and job.never for job in status.jobs)
        or any(entry.planned for entry in chain.jobs.values())
        or any(job.owner and job.state in ended and not chain.jobs[job.job].skipped for job in status.jobs)
    )


def _waiting(job: JobStatus, chain: Chain, jobs: Mapping[str, JobStatus], attendant: str) -> JobStatus:
    """Return a pending job's status with its unfinished needs; blocked if one of `jobs`, final before it, is broken."""
    needs = [need for need in chain.jobs[job.job].needs if need in jobs]
    if broken := [need for need in needs if jobs[need].state in BROKEN | {"blocked"}]:
        return replace(job, state="blocked", words=f"keeps its place until {', '.join(broken)} can go on")
    if job.never:
        points = f"{attendant} points" if attendant else f"`r2v heal {chain.name}` points"
        words = f"waits for an attempt that has failed; {points} it at the next one"
        return replace(job, state="healing" if attendant else "blocked", words=words)
    unfinished = [need for need in needs if jobs[need].state not in FINISHED]
    return replace(job, words=f"waits for {', '.join(unfinished)}" if unfinished else "starts soon")


def _edited(chain: Chain, jobs: Iterable[JobStatus], root: Path) -> list[str]:
    """Return a line on headers edited since pending jobs were submitted; [] for none."""
    waiting = [job.job for job in jobs if job.state in ("queued", "waiting", "stuck", "blocked") and not job.owner]
    edits = []
    if waiting and chain.is_mine:
        with suppress(R2VError):  # the submitting command reports a bad header or configuration
            config = load(chains.folder(root, chain.name) / "config.yaml")
            for name in waiting:
                latest, request = chain.jobs[name].latest, next_request(root, chain, name, config)
                if latest is not None and (changed := changes(latest.resources, request.directives)):
                    edits.append(f"{name} {', '.join(changed)}")
    take = f"the jobs that wait take them by `r2v resume {chain.name}`"
    return [f"headers were edited since: {'; '.join(edits)}; {take}"] if edits else []


def _banners(chain: Chain, jobs: Iterable[JobStatus], slurm: SlurmSnapshot, root: Path, attendant: str) -> list[str]:
    """Return the warnings of a status: sources that did not answer, and reasons that stop the whole chain."""
    lines = [] if chain.is_mine else [f"{chain.user}'s chain: it can be looked at, not changed"]
    if (chains.folder(root, chain.name) / "config.yaml").exists():
        try:
            require_configuration(root, chain)
        except InputError as error:  # its jobs would refuse to start
            lines.append(str(error))
    if slurm.queue_down:
        lines.append(f"the queue could not be asked: {slurm.queue_down}")
    if slurm.accounting.down:
        lines.append(f"accounting down, status from files and squeue: {slurm.accounting.down}")
    if chain.cancelled:
        lines.append(f"cancelled at {clock(chain.cancelled)}; `r2v resume {chain.name}` takes it up again")
    missing = [job.job for job in jobs if job.state == "not submitted"]
    if missing and not chain.cancelled:
        lines.append(
            f"{attendant} is submitting"
            if attendant
            else f"not submitted: {', '.join(missing)}; the command that submitted was cut off: r2v resume {chain.name}"
        )
    return lines


def _attendant(chain: Chain, jobs: Iterable[JobStatus], root: Path) -> str:
    """Return the holder of a chain's lease if a part of the chain is still to be reconciled; "" for none."""
    undone = any(
        job.state == "not submitted" or job.unanswered and not job.owner or job.state == "waiting" and job.never
        for job in jobs
    )
    if chain.cancelled or not undone:
        return ""
    return str(holder(chains.folder(root, chain.name) / "chain.lease") or "")


def _of_owner(name: str, job: ChainJob, others: Mapping[str, ChainFiles], slurm: SlurmSnapshot) -> JobStatus:
    """Return the status of a job that another chain makes."""
    owner = others.get(job.owner)
    theirs = owner.chain.jobs.get(name) if owner is not None else None
    if owner is None or theirs is None or theirs.owner:
        words = f"{job.owner} makes it no more; whichever job starts or ends next submits it here, or: r2v status"
        return JobStatus(job=name, state="not submitted", words=words, owner=job.owner)
    return replace(_of(name, theirs, owner, slurm), owner=job.owner)


def _of(name: str, job: ChainJob, files: ChainFiles, slurm: SlurmSnapshot) -> JobStatus:
    """Return the status of a job by its planned or latest attempt."""
    last = job.latest
    if job.planned is not None:
        why = last.failure.action if last and last.failure else "to be submitted"
        words = f"{why}; whichever job starts or ends next submits it, or: r2v status"
        return JobStatus(job=name, state="healing" if last else "queued", words=words, id=last.id if last else "")
    if last is None:
        return JobStatus(job=name, state="up to date" if job.skipped else "not submitted", words=job.skipped or "")
    status = job_status(name, last, files.records[last.id], slurm, len(job.attempts))
    if job.skipped and status.state != "done":  # published since by another chain or process
        return JobStatus(job=name, state="up to date", words=job.skipped)
    return _after_healing(status, last, slurm) if status.state == "failed" else status


def _after_healing(status: JobStatus, last: Attempt, slurm: SlurmSnapshot) -> JobStatus:
    """Return the status of a failed attempt with the present or past action of its sentinel."""
    sentinel = (slurm.queue or {}).get(last.sentinel or "")
    if sentinel is not None:
        doing = "is at work" if sentinel.state == "RUNNING" else "comes next"
        return replace(status, state="healing", words=f"{status.words}; its sentinel {sentinel.id} {doing}")
    if (failure := last.failure) is not None:
        words = f"{failure_text(failure.kind, failure.line)}; {failure.action}"
        return replace(status, kind=failure.kind, words=words)
    who = f"its sentinel {last.sentinel} ended without acting" if last.sentinel else "it has no sentinel"
    return replace(status, words=f"{status.words}; not healed: {who}", unanswered=True)
