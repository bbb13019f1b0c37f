"""The status of whole chains: from their files, one squeue and at most one sacct, however many jobs there are.

    r2v status                 # every chain
    r2v status desk_noisy --json

Exit code 0: all is done. 1: something failed, was cancelled or was never submitted, and no healing is under way.
10: active. 5: the queue could not be asked. The queue is asked before the files are read, so that a job which ends in
between is seen alive rather than lost.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from r2v.errors import EnvironmentFault, InputError, UsageError, nearest
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob, require_configuration
from r2v.slurm.chain.job_record import JobRecord
from r2v.slurm.client import client
from r2v.slurm.healing import shared_stages
from r2v.slurm.views.humanize import clock
from r2v.slurm.views.states import JobStatus, SlurmSnapshot, failure_text, job_status
from r2v.storage.lease import holder
from r2v.storage.paths import CHAINS

FINISHED = frozenset(("done", "up to date"))
BROKEN = frozenset(("failed", "cancelled", "not submitted"))


@dataclass(frozen=True, kw_only=True)
class StatusInputs:
    """All that a view is made of: Slurm's answers, the chains, and their jobs' records by chain and job id."""

    slurm: SlurmSnapshot
    chains: dict[str, Chain]
    records: dict[str, dict[str, JobRecord]]
    """Of these chains, and of those that make something for them."""
    owners: dict[str, Chain] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ChainStatus:
    """The state of a chain: its jobs in order, and warnings about what could not be found out."""

    name: str
    jobs: list[JobStatus]
    banners: list[str]
    submitted: str = ""
    commit: str = ""
    snapshot: str | None = None
    attendant: str = ""
    """Who is changing the chain now, where that is not yet as it should be."""

    @property
    def exit_code(self) -> int:
        """0 done, 1 broken for good, 10 active, 5 where that could not be found out."""
        states = {job.state for job in self.jobs if not job.by_hand}
        unsettled = states or {job.state for job in self.jobs}
        broken = {"failed", "cancelled"} if self.attendant else BROKEN | {"blocked"}
        if unsettled & broken:
            return 1
        if "unknown" in unsettled and any(line.startswith("the queue") for line in self.banners):
            return EnvironmentFault.exit_code
        return 0 if unsettled <= FINISHED else 10


def names(root: Path = Path()) -> list[str]:
    """Every chain, those included that only have jobs submitted by an sbatch line."""
    marks = ("chain.json", "config.yaml", "jobs")
    folders = (path for path in (root / CHAINS).glob("*") if any(os.path.lexists(path / mark) for mark in marks))
    return sorted(path.name for path in folders)


def readable(wanted: Sequence[str], root: Path = Path()) -> list[str]:
    """Those of these chains that can be read, each other one in a line of the log: one damaged file hides no other
    chain. Raises InputError where it is the only one."""
    found = []
    for name in wanted:
        try:
            _chain(root, name)
            found.append(name)
        except InputError as error:
            if len(wanted) == 1:
                raise
            logger.warning("%s: %s", name, error)
    return found


def chosen(root: Path, name: str | None) -> str:
    """The chain of this name, or the only one there is. Raises UsageError naming those there are."""
    known = names(root)
    if not known:
        raise UsageError(f"no chain of jobs in {root / CHAINS}; submit one: bash run_all.sh desk")
    if name is None and len(known) > 1:
        raise UsageError(f"which chain? Name one of {', '.join(known)}")
    if name is not None and name not in known:
        raise UsageError(f"no chain {name}; {nearest(name, known)}")
    return name or known[0]


def gather_inputs(wanted: Sequence[str], root: Path = Path()) -> StatusInputs:
    """The queue, then the files of these chains, then accounting for what has left the queue."""
    queue, down = None, None
    try:
        queue = {row.id: row for row in client.queue()}
    except EnvironmentFault as error:
        down = str(error)
    known, records = dict[str, Chain](), dict[str, dict[str, JobRecord]]()
    for name in wanted:
        known[name], records[name] = files(name, root)
    makers = dict[str, Chain]()
    for name in sorted({owner for chain in known.values() for owner in shared_stages.owners(chain)} - known.keys()):
        with suppress(InputError):
            makers[name], records[name] = files(name, root)
    gone = [job_id for ids in records.values() for job_id in ids if queue is None or job_id not in queue]
    slurm = SlurmSnapshot(queue=queue, queue_down=down, accounting=client.accounting(gone))
    return StatusInputs(slurm=slurm, chains=known, records=records, owners=makers)


def files(name: str, root: Path = Path()) -> tuple[Chain, dict[str, JobRecord]]:
    """A chain, and the records of its Slurm jobs by id. Asks Slurm nothing."""
    chain = _chain(root, name)
    return chain, {job_id: job_record.record(root, name, job_id) for job_id in _ids(root, chain)}


def _chain(root: Path, name: str) -> Chain:
    folder = chains.folder(root, name)
    if not os.path.lexists(folder / "chain.json") and not (folder / "config.yaml").exists():
        return Chain(name=name, benchmark="", condition="", config_sha="")
    return chains.read(root, name)


def _ids(root: Path, chain: Chain) -> Iterable[str]:
    """The Slurm jobs of a chain: every attempt, then those that wrote a record without being one."""
    attempts = [attempt for known in chain.history.values() for attempt in known]
    watched = {attempt.sentinel for attempt in attempts}
    folder = chains.folder(root, chain.name) / "jobs"
    recorded = sorted((path.name for path in folder.iterdir()), key=client.job_number) if folder.is_dir() else ()
    return dict.fromkeys([*(attempt.id for attempt in attempts), *(id_ for id_ in recorded if id_ not in watched)])


def statuses(inputs: StatusInputs, root: Path = Path()) -> list[ChainStatus]:
    """The status of every chain of these inputs."""
    known = {**inputs.owners, **inputs.chains}
    return [
        fold(chain, inputs.records[name], inputs.slurm, root, {one: (known[one], inputs.records[one]) for one in known})
        for name, chain in inputs.chains.items()
    ]


def fold(
    chain: Chain,
    records: Mapping[str, JobRecord],
    slurm: SlurmSnapshot,
    root: Path = Path(),
    others: Mapping[str, tuple[Chain, Mapping[str, JobRecord]]] = MappingProxyType({}),
) -> ChainStatus:
    """The status of one chain; of a stage that one of the `others` makes, what stands there."""
    jobs = {
        name: _of_owner(name, job, others, slurm) if job.owner and not job.skipped else _of(name, job, records, slurm)
        for name, job in chain.jobs.items()
    }
    attendant = _attendant(chain, jobs.values(), root)
    if attendant:
        jobs |= {
            name: replace(made, state="healing", words=f"{made.words}; {attendant} is at it")
            for name, made in jobs.items()
            if made.state == "failed" and made.unanswered
        }
    for name, job in chain.jobs.items():
        needs = [need for need in job.needs if need in jobs]
        broken = [need for need in needs if jobs[need].state in BROKEN | {"blocked"}]
        if jobs[name].state == "waiting" and broken:
            words = f"keeps its place until {', '.join(broken)} can go on"
            jobs[name] = replace(jobs[name], state="blocked", words=words)
        elif jobs[name].state == "waiting" and jobs[name].never:
            who = f"{attendant} points" if attendant else f"`r2v heal {chain.name}` points"
            words = f"waits for an attempt that has failed; {who} it at the next one"
            jobs[name] = replace(jobs[name], state="healing" if attendant else "blocked", words=words)
        elif jobs[name].state == "waiting":
            unfinished = [need for need in needs if jobs[need].state not in FINISHED]
            words = f"waits for {', '.join(unfinished)}" if unfinished else "starts soon"
            jobs[name] = replace(jobs[name], words=words)
    for name, made in jobs.items():
        if made.owner:
            jobs[name] = replace(made, words=f"made by {made.owner}" + (f": {made.words}" if made.words else ""))
    for name, counts in _helpers(chain.name, slurm, root).items():
        if name in jobs:
            told = " and ".join(f"{count} {state.lower()}" for state, count in sorted(counts.items()))
            jobs[name] = replace(jobs[name], helpers=dict(counts), words=f"{jobs[name].words}, helpers: {told}")
    attempts = chain.slurm_ids
    by_hand = [
        replace(job_status(str((record.start or {}).get("job", "?")), Attempt(id=id_), record, slurm), by_hand=True)
        for id_, record in records.items()
        if id_ not in attempts
    ]
    return ChainStatus(
        name=chain.name,
        jobs=[*jobs.values(), *by_hand],
        submitted=chain.created_at,
        commit=(chain.commit or "")[:10] + ("+" if chain.dirty else ""),
        snapshot=chain.snapshot,
        attendant=attendant,
        banners=_banners(chain, list(jobs.values()), slurm, root, attendant),
    )


def _banners(
    chain: Chain, jobs: Sequence[JobStatus], slurm: SlurmSnapshot, root: Path, attendant: str = ""
) -> list[str]:
    """What a status says above its jobs: what could not be asked, and what stops the whole chain. attendant: who is
    changing it now."""
    lines = []
    if (chains.folder(root, chain.name) / "config.yaml").exists():
        try:
            require_configuration(root, chain)
        except InputError as error:
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
            else f"not submitted: {', '.join(missing)}; the command that submitted was cut off. Run it again: what is "
            "in the queue is adopted"
        )
    return lines


def _attendant(chain: Chain, jobs: Iterable[JobStatus], root: Path) -> str:
    """Who is changing a chain now in which something is still to be done; "" where nothing is, or nobody does."""
    undone = any(
        job.state == "not submitted" or job.unanswered and not job.owner or job.state == "waiting" and job.never
        for job in jobs
    )
    if chain.cancelled or not undone:
        return ""
    return str(holder(chains.folder(root, chain.name) / "chain.lease") or "")


def _helpers(name: str, slurm: SlurmSnapshot, root: Path) -> dict[str, Counter[str]]:
    """Job -> how many helpers beside it are in the queue, by their state."""
    found: dict[str, Counter[str]] = {}
    for row in client.of_chain((slurm.queue or {}).values(), name, root, mark=client.HELPERS_MARK):
        found.setdefault(row.comment.rpartition("/")[2], Counter())[row.state] += 1
    return found


def _of_owner(
    name: str,
    job: ChainJob,
    others: Mapping[str, tuple[Chain, Mapping[str, JobRecord]]],
    slurm: SlurmSnapshot,
) -> JobStatus:
    chain, records = others.get(job.owner, (None, {}))
    if chain is None or name not in chain.jobs or chain.jobs[name].owner:
        words = f"{job.owner} makes it no more; whichever job starts or ends next submits it here, or: r2v status"
        return JobStatus(job=name, state="not submitted", words=words, owner=job.owner)
    found = _of(name, chain.jobs[name], records, slurm)
    return replace(found, owner=job.owner)


def _of(name: str, job: ChainJob, records: Mapping[str, JobRecord], slurm: SlurmSnapshot) -> JobStatus:
    last = job.latest
    if job.planned is not None:
        why = last.failure.action if last and last.failure else "to be submitted"
        words = f"{why}; whichever job starts or ends next submits it, or: r2v status"
        return JobStatus(job=name, state="healing" if last else "queued", words=words, id=last.id if last else "")
    if last is None:
        return (
            JobStatus(job=name, state="up to date", words=job.skipped)
            if job.skipped
            else JobStatus(job=name, state="not submitted")
        )
    status = job_status(name, last, records[last.id], slurm, len(job.attempts))
    if job.skipped and status.state != "done":  # made since, outside of this chain
        return JobStatus(job=name, state="up to date", words=job.skipped)
    return _after_healing(status, last, slurm) if status.state == "failed" else status


def _after_healing(status: JobStatus, last: Attempt, slurm: SlurmSnapshot) -> JobStatus:
    """A failed attempt, with what its sentinel does, or did, about it."""
    sentinel = (slurm.queue or {}).get(last.sentinel or "")
    if sentinel is not None:
        doing = "is at work" if sentinel.state == "RUNNING" else "comes next"
        return replace(status, state="healing", words=f"{status.words}; its sentinel {sentinel.id} {doing}")
    if last.failure is not None:
        return replace(
            status,
            kind=last.failure.kind,
            words=f"{failure_text(last.failure.kind, last.failure.line)}; {last.failure.action}",
        )
    who = f"its sentinel {last.sentinel} ended without acting" if last.sentinel else "it has no sentinel"
    return replace(status, words=f"{status.words}; not healed: {who}", unanswered=True)


def overall(codes: Iterable[int]) -> int:
    """The exit code of several chains together: the worst first."""
    present = set(codes)
    return next((code for code in (1, EnvironmentFault.exit_code, 10) if code in present), 0)
