"""The state of whole chains: their files, one squeue and at most one sacct, however many jobs there are.

    r2v status                 # every chain
    r2v status desk_noisy --json

Exit code 0: all is done. 1: something failed, was cancelled or was never submitted, and nobody mends it. 10: active.
5: the queue could not be asked. The queue is asked before the files are read, so that a job which ends in between
is seen alive rather than lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from r2v.errors import EnvironmentFault, UsageError, nearest
from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.chain import Attempt, Chain, ChainJob, Record
from r2v.slurm.views.humanize import clock, table
from r2v.slurm.views.states import JobStatus, Seen, judge, memory_words, of_kind
from r2v.storage.lease import holder
from r2v.storage.paths import CHAINS

ACTIVE = frozenset(("running", "queued", "waiting", "healing", "held"))
FINISHED = frozenset(("done", "up to date"))
BROKEN = frozenset(("failed", "cancelled", "not submitted"))


@dataclass(frozen=True, kw_only=True)
class Look:
    """All that was read for a view: Slurm's answers, the chains, and their jobs' records by chain and job id."""

    seen: Seen
    chains: dict[str, Chain]
    records: dict[str, dict[str, Record]]


@dataclass(frozen=True, kw_only=True)
class ChainStatus:
    """A chain as it stands: its jobs in order, and what a reader should know before he believes them."""

    name: str
    jobs: list[JobStatus]
    banners: list[str]
    submitted: str = ""
    commit: str = ""

    @property
    def exit_code(self) -> int:
        """0 done, 1 broken for good, 10 active, 5 where that could not be found out."""
        states = {one.state for one in self.jobs if not one.by_hand}
        unsettled = states or {one.state for one in self.jobs}
        if unsettled & BROKEN and not any("is submitting" in line for line in self.banners):
            return 1
        if "unknown" in unsettled and any(line.startswith("the queue") for line in self.banners):
            return EnvironmentFault.exit_code
        return 0 if unsettled <= FINISHED else 10


def names(root: Path = Path()) -> list[str]:
    """Every chain, those included that only have jobs submitted by an sbatch line."""
    folders = (path for path in (root / CHAINS).glob("*") if (path / "chain.json").exists() or (path / "jobs").is_dir())
    return sorted(path.name for path in folders)


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


def look(wanted: Sequence[str], root: Path = Path()) -> Look:
    """The queue, then the files of these chains, then accounting for what has left the queue."""
    queue, down = None, None
    try:
        queue = {row.id: row for row in client.queue()}
    except EnvironmentFault as error:
        down = str(error)
    found, records = dict[str, Chain](), dict[str, dict[str, Record]]()
    for name in wanted:
        found[name], records[name] = files(name, root)
    gone = [job_id for ids in records.values() for job_id in ids if queue is None or job_id not in queue]
    seen = Seen(queue=queue, queue_down=down, accounting=client.accounting(gone))
    return Look(seen=seen, chains=found, records=records)


def files(name: str, root: Path = Path()) -> tuple[Chain, dict[str, Record]]:
    """A chain, and the records of its Slurm jobs by id. Asks Slurm nothing."""
    chain = _chain(root, name)
    return chain, {job_id: chains.record(root, name, job_id) for job_id in _ids(root, chain)}


def _chain(root: Path, name: str) -> Chain:
    if not (chains.folder(root, name) / "chain.json").exists():
        return Chain(name=name, benchmark="", condition="", config_sha="")
    return chains.read(root, name)


def _ids(root: Path, chain: Chain) -> Iterable[str]:
    """The Slurm jobs of a chain: every attempt, then those that wrote a record without being one."""
    attempts = [attempt for job in chain.jobs.values() for attempt in job.attempts]
    watched = {attempt.sentinel for attempt in attempts}
    folder = chains.folder(root, chain.name) / "jobs"
    own = sorted((path.name for path in folder.iterdir()), key=_number) if folder.is_dir() else ()
    return dict.fromkeys([*(attempt.id for attempt in attempts), *(one for one in own if one not in watched)])


def _number(job_id: str) -> tuple[int, str]:
    digits = job_id.split("_")[0]
    return (int(digits) if digits.isdigit() else 0, job_id)


def statuses(seen: Look, root: Path = Path()) -> list[ChainStatus]:
    """Every chain that was looked at, as it stands."""
    return [fold(chain, seen.records[name], seen.seen, root) for name, chain in seen.chains.items()]


def fold(chain: Chain, records: Mapping[str, Record], seen: Seen, root: Path = Path()) -> ChainStatus:
    """One chain as it stands, from what was looked at."""
    found = {name: _of(name, job, records, seen) for name, job in chain.jobs.items()}
    for name, job in chain.jobs.items():
        needs = [need for need in job.needs if need in found]
        broken = [need for need in needs if found[need].state in BROKEN | {"held"}]
        if found[name].state == "waiting" and broken:
            found[name] = replace(found[name], state="held", words=f"keeps its place until {_and(broken)} can go on")
        elif found[name].state == "waiting":
            open_needs = [need for need in needs if found[need].state not in FINISHED]
            found[name] = replace(found[name], words=f"waits for {_and(open_needs)}" if open_needs else "starts soon")
    attempts = {attempt.id for job in chain.jobs.values() for attempt in job.attempts}
    alone = [
        replace(judge(str((record.start or {}).get("job", "?")), Attempt(id=one), record, seen), by_hand=True)
        for one, record in records.items()
        if one not in attempts
    ]
    return ChainStatus(
        name=chain.name,
        jobs=[*found.values(), *alone],
        submitted=chain.created_at,
        commit=(chain.commit or "")[:10] + ("+" if chain.dirty else ""),
        banners=_banners(chain, list(found.values()), seen, root),
    )


def _of(name: str, job: ChainJob, records: Mapping[str, Record], seen: Seen) -> JobStatus:
    last = job.latest
    if last is None:
        return (
            JobStatus(job=name, state="up to date", words=job.skipped)
            if job.skipped
            else JobStatus(job=name, state="not submitted")
        )
    status = judge(name, last, records[last.id], seen, len(job.attempts))
    if job.skipped and status.state != "done":  # made since, by another door
        return JobStatus(job=name, state="up to date", words=job.skipped)
    return _after_healing(status, last, seen) if status.state == "failed" else status


def _after_healing(status: JobStatus, last: Attempt, seen: Seen) -> JobStatus:
    """A failed attempt beside what its sentinel does, or did, about it."""
    sentinel = (seen.queue or {}).get(last.sentinel or "")
    if sentinel is not None:
        doing = "is at work" if sentinel.state == "RUNNING" else "comes next"
        return replace(status, state="healing", words=f"{status.words}; its sentinel {sentinel.id} {doing}")
    if last.failure is not None:
        return replace(
            status,
            kind=last.failure.kind,
            words=f"{of_kind(last.failure.kind, last.failure.line)}; {last.failure.action}",
        )
    who = f"its sentinel {last.sentinel} ended without acting" if last.sentinel else "it has no sentinel"
    return replace(status, words=f"{status.words}; not healed: {who}")


def _and(names: Sequence[str]) -> str:
    return ", ".join(names)


def _banners(chain: Chain, jobs: Sequence[JobStatus], seen: Seen, root: Path) -> list[str]:
    lines = []
    if seen.queue_down:
        lines.append(f"the queue could not be asked: {seen.queue_down}")
    if seen.accounting.down:
        lines.append(f"accounting down, told from files and squeue: {seen.accounting.down}")
    if chain.cancelled:
        lines.append(f"cancelled at {clock(chain.cancelled)}; `r2v resume {chain.name}` takes it up again")
    missing = [one.job for one in jobs if one.state == "not submitted"]
    if missing and not chain.cancelled:
        owner = holder(chains.folder(root, chain.name) / "chain.lease")
        lines.append(
            f"{owner} is submitting"
            if owner
            else f"not submitted: {', '.join(missing)}; the command that "
            "submitted was cut off. Type it again: what is in the queue is adopted"
        )
    return lines


def lines(status: ChainStatus) -> list[str]:
    """What `r2v status` prints of one chain."""
    counts = dict.fromkeys(one.state for one in status.jobs)
    summary = ", ".join(f"{sum(one.state == state for one in status.jobs)} {state}" for state in counts)
    head = f"{status.name}: {summary}" + (
        f"  (submitted {clock(status.submitted)}, commit {status.commit})" if status.submitted else ""
    )
    rows = [
        ("job", "state", "id", "try", "memory", ""),
        *(
            (
                one.job + (" (sbatch)" if one.by_hand else ""),
                one.state,
                one.id,
                str(one.attempt or ""),
                memory_words(one),
                one.words,
            )
            for one in status.jobs
        ),
    ]
    told = [head, *table(rows), *(f"  ! {line}" for line in status.banners)]
    if status.exit_code == 1:
        told.append(f"  r2v explain {status.name}")
    return told


def as_json(status: ChainStatus) -> dict[str, Any]:
    """The same for a program."""
    return {
        "name": status.name,
        "exit_code": status.exit_code,
        "submitted": status.submitted,
        "commit": status.commit,
        "banners": status.banners,
        "jobs": [asdict(one) for one in status.jobs],
    }


def overall(codes: Iterable[int]) -> int:
    """The exit code of several chains together: the worst first."""
    found = set(codes)
    return next((code for code in (1, EnvironmentFault.exit_code, 10) if code in found), 0)
