"""Sources of every view: the queue by one squeue, the files of chains, and accounting by at most one sacct.

The queue is asked before the files are read, so that a job which ends in between is seen alive rather than lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    """Slurm's answers at one time: my jobs in the queue and those of whoever submitted the chains shown, by id (None:
    no answer, `queue_down` says why), and what accounting says."""

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
        """(job, number, attempt) of every attempt, then of every job that an sbatch line submitted."""
        history = self.chain.history.items()
        submitted = [(job, number, one) for job, made in history for number, one in enumerate(made, start=1)]
        known = {one.id for _, _, one in submitted}
        by_hand = {id_: record for id_, record in self.records.items() if id_ not in known}
        return submitted + [
            (str((record.start or {}).get("job", "?")), 1, Attempt(id=id_)) for id_, record in by_hand.items()
        ]


@dataclass(frozen=True, kw_only=True)
class ViewSources:
    """All that views are made of: Slurm's answers, and the files of the chains `shown` and of those that make
    something for them."""

    slurm: SlurmSnapshot
    shown: tuple[str, ...]
    files: Mapping[str, ChainFiles]

    def read_again(self, root: Path = Path()) -> ViewSources:
        """The same answers of Slurm beside the files as they are now."""
        return replace(self, files={name: read_files(name, root) for name in self.files})


def names(root: Path = Path()) -> list[str]:
    """Every chain, those included that only have jobs submitted by an sbatch line."""
    marks = ("chain.json", "config.yaml", "jobs")
    folders = (path for path in (root / CHAINS).glob("*") if any(os.path.lexists(path / mark) for mark in marks))
    return sorted(path.name for path in folders)


def chosen(root: Path, name: str | None) -> str:
    """The chain of this name, or the only one there is. Raises UsageError naming those there are."""
    known = names(root)
    if not known:
        remedy = "bash run_all.sh desk" if (root / "run_all.sh").exists() else "in a project that `r2v init DIR` makes"
        raise UsageError(f"no chain of jobs in {root / CHAINS}; submit one: {remedy}; or run the stages here: r2v run")
    if name is None and len(known) > 1:
        raise UsageError(f"which chain? Name one of {', '.join(known)}")
    if name is not None and name not in known:
        raise UsageError(f"no chain {name}; {nearest(name, known)}")
    return name or known[0]


def readable(wanted: Sequence[str], root: Path = Path()) -> list[str]:
    """Those of these chains that can be read, each other one in a line of the log: one damaged file hides no other
    chain. Raises InputError where it is the only one."""
    sound = []
    for name in wanted:
        try:
            _chain(root, name)
            sound.append(name)
        except InputError as error:
            if len(wanted) == 1:
                raise
            logger.warning("%s: %s", name, error)
    return sound


def gather(wanted: Sequence[str], root: Path = Path(), *, costs: bool = False) -> ViewSources:
    """The queue, then the files of these chains, then accounting for what has left the queue; `costs`: for what is in
    it too, and for helpers."""
    queue, down = None, None
    others = {chain.user for name in wanted if not (chain := _chain(root, name)).is_mine}
    try:
        rows = [*client.queue(), *(client.queue(users=others) if others else ())]
        queue = {row.id: row for row in rows}
    except EnvironmentFault as error:
        down = str(error)
    files = {name: read_files(name, root) for name in wanted}
    for name in sorted({owner for one in files.values() for owner in owners(one.chain)} - files.keys()):
        with suppress(InputError):
            files[name] = read_files(name, root)
    records = [(id_, record) for one in files.values() for id_, record in one.records.items()]
    ids = [id_ for id_, _ in records if costs or queue is None or id_ not in queue]
    arrays = [array for _, record in records if costs for array in record.helpers]
    slurm = SlurmSnapshot(queue=queue, queue_down=down, accounting=client.accounting([*ids, *arrays]))
    return ViewSources(slurm=slurm, shown=tuple(wanted), files=files)


def read_files(name: str, root: Path = Path()) -> ChainFiles:
    """A chain, and the records of its Slurm jobs. Asks Slurm nothing."""
    chain = _chain(root, name)
    return ChainFiles(chain=chain, records={id_: job_record.record(root, name, id_) for id_ in _ids(root, chain)})


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
