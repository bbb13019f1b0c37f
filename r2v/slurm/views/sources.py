"""Sources of all views: the queue by one squeue, the files of chains, and accounting by at most one sacct.

The queue is read before the files, so that a job that ends in between is seen alive rather than lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from r2v.errors import EnvironmentFault, InputError, UsageError, nearest
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Attempt, Chain
from r2v.slurm.chain.job_record import JobRecord
from r2v.slurm.client import client
from r2v.slurm.client.client import Accounting, Queued
from r2v.slurm.healing.shared_stages import owners
from r2v.storage.paths import CHAINS


@dataclass(frozen=True, kw_only=True)
class SlurmSnapshot:
    """Slurm's answers at one time: by id the queued jobs of this user and of the owners of shown chains (None: no
    answer, `queue_down` is the error), and accounting."""

    queue: dict[str, Queued] | None
    queue_down: str | None = None
    accounting: Accounting = field(default_factory=Accounting)


@dataclass(frozen=True, kw_only=True)
class ChainFiles:
    """A chain, and the records of its Slurm jobs by id."""

    chain: Chain
    records: Mapping[str, JobRecord]

    @property
    def attempts(self) -> list[tuple[str, int, Attempt]]:
        """(job, number, attempt) of every attempt, then of every job submitted by sbatch directly."""
        history = self.chain.history.items()
        submitted = [(job, number, entry) for job, tries in history for number, entry in enumerate(tries, start=1)]
        recorded = {attempt.id for _, _, attempt in submitted}
        by_hand = {id_: record for id_, record in self.records.items() if id_ not in recorded}
        return submitted + [
            (str((record.start or {}).get("job", "?")), 1, Attempt(id=id_)) for id_, record in by_hand.items()
        ]


@dataclass(frozen=True, kw_only=True)
class ViewSources:
    """The input of all views: Slurm's answers, and the files of the chains `shown` and of their owners."""

    slurm: SlurmSnapshot
    shown: tuple[str, ...]
    files: Mapping[str, ChainFiles]


def names(root: Path = Path()) -> list[str]:
    """Return the names of all chains, those with only directly submitted jobs included."""
    marks = ("chain.json", "config.yaml", "jobs")
    folders = (path for path in (root / CHAINS).glob("*") if any(os.path.lexists(path / mark) for mark in marks))
    return sorted(path.name for path in folders)


def chosen(root: Path, name: str | None) -> str:
    """Return the chain of this name, or the only one. Raises UsageError listing the existing ones."""
    existing = names(root)
    if not existing:
        remedy = "bash run_all.sh desk" if (root / "run_all.sh").exists() else "in a project that `r2v init DIR` makes"
        raise UsageError(f"no chain of jobs in {root / CHAINS}; submit one: {remedy}; or run the stages here: r2v run")
    if name is None and len(existing) > 1:
        raise UsageError(f"which chain? Name one of {', '.join(existing)}")
    if name is not None and name not in existing:
        raise UsageError(f"no chain {name}; {nearest(name, existing)}")
    return name or existing[0]


def readable(chain_names: Sequence[str], root: Path = Path()) -> list[str]:
    """Return the readable chains and log the others, so that a damaged file hides no other chain. Raises InputError for
    a damaged chain that is the only one requested."""
    sound = []
    for name in chain_names:
        try:
            _chain(root, name)
            sound.append(name)
        except InputError as error:
            if len(chain_names) == 1:
                raise
            logger.warning("chain skipped: chain=%s error=%s", name, error)
    return sound


def gather(chain_names: Sequence[str], root: Path = Path(), *, costs: bool = False) -> ViewSources:
    """Read the queue, then the files of these chains, then accounting for jobs that have left the queue; with `costs`
    also for queued jobs and helpers."""
    queue, down = None, None
    others = {chain.user for name in chain_names if not (chain := _chain(root, name)).is_mine}
    try:
        rows = [*client.queue(), *(client.queue(users=others) if others else ())]
        queue = {row.id: row for row in rows}
    except EnvironmentFault as error:  # a status from files and accounting is still worth showing
        down = str(error)
    files = {name: read_files(name, root) for name in chain_names}
    for name in sorted({owner for entry in files.values() for owner in owners(entry.chain)} - files.keys()):
        with suppress(InputError):  # a shared stage of a damaged owner is shown as not submitted
            files[name] = read_files(name, root)
    records = [(id_, record) for entry in files.values() for id_, record in entry.records.items()]
    ids = [id_ for id_, _ in records if costs or queue is None or id_ not in queue]
    arrays = [array for _, record in records if costs for array in record.helpers]
    slurm = SlurmSnapshot(queue=queue, queue_down=down, accounting=client.accounting([*ids, *arrays]))
    return ViewSources(slurm=slurm, shown=tuple(chain_names), files=files)


def read_files(name: str, root: Path = Path()) -> ChainFiles:
    """Return a chain and the records of its Slurm jobs, without a call of Slurm."""
    chain = _chain(root, name)
    return ChainFiles(chain=chain, records={id_: job_record.record(root, name, id_) for id_ in _ids(root, chain)})


def _chain(root: Path, name: str) -> Chain:
    folder = chains.folder(root, name)
    if not os.path.lexists(folder / "chain.json") and not (folder / "config.yaml").exists():
        return Chain(name=name, benchmark="", condition="", config_sha="")
    return chains.read(root, name)


def _ids(root: Path, chain: Chain) -> Iterable[str]:
    """Return the Slurm jobs of a chain: every attempt, then other jobs that wrote a record."""
    attempts = [attempt for job_attempts in chain.history.values() for attempt in job_attempts]
    watched = {attempt.sentinel for attempt in attempts}
    folder = chains.folder(root, chain.name) / "jobs"
    recorded = sorted((path.name for path in folder.iterdir()), key=client.job_number) if folder.is_dir() else ()
    return dict.fromkeys([*(attempt.id for attempt in attempts), *(id_ for id_ in recorded if id_ not in watched)])
