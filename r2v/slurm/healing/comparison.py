"""The comparison of a chain with the queue and with its jobs' own records, on which one reconciliation works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from r2v.errors import InputError
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import WHOLE, Attempt, Chain, JobComment, parse_comment
from r2v.slurm.client.client import Queued, of_chain
from r2v.slurm.client.sacct import is_alive
from r2v.slurm.healing.heal import ended_well

Standing = Literal["active", "planned", "done", "failed", "unknown", "absent"]
"""A job's state in its chain: queued; due for submission; succeeded; failed; ended, not known how; unsubmitted."""
NEVER = "DependencyNeverSatisfied"
"""Slurm's reason for a pending job whose dependency has failed."""


@dataclass(kw_only=True)
class Comparison:
    """A chain compared with the queue. The caller holds the chain's lock."""

    root: Path
    chain: Chain
    rows: dict[str, Queued]
    """By id: the chain's jobs in the queue, and ended ones that the controller remembers."""
    listed: frozenset[str] = frozenset()
    """Ids that squeue listed, without those submitted since."""
    ended: frozenset[str] = frozenset()
    """Jobs that report their own end: still in the queue, about to exit."""
    awaited: str = ""
    """The job whose end is waited for; `WHOLE`: any that has ended."""
    undone: list[str] = field(default_factory=list)
    """The actions that failed for now, a line each."""
    unknown_ends: set[str] = field(default_factory=set)
    """Jobs that ended with their outcome not known yet: their sentinel stays."""
    submitted: list[str] = field(default_factory=list)
    refusal: str = ""
    """Reason that a person's submission stopped halfway; "" if it did not."""

    everybody: list[Queued] = field(default_factory=list)
    """This user's jobs of every chain, from the same squeue."""
    scope: frozenset[str] | None = None
    """The jobs to reconcile; None: all."""
    _owners: dict[str, Comparison | None] = field(default_factory=dict)

    def write(self, chain: Chain) -> None:
        """Replace the chain, here and on disk."""
        self.chain = chain
        chains.write(self.root, chain)

    @property
    def jobs(self) -> list[str]:
        """The jobs to reconcile, in order."""
        return [job for job in self.chain.jobs if self.scope is None or job in self.scope]

    def alive(self, id_: str) -> bool:
        """True if a job has not ended."""
        return self.in_queue(id_) and id_ not in self.ended

    def in_queue(self, id_: str) -> bool:
        """True if a job has not ended according to Slurm."""
        return id_ in self.rows and is_alive(self.rows[id_].state)

    def marked(self, job: str | None = None) -> Iterator[tuple[Queued, JobComment]]:
        """Yield the chain's rows (of one job) with their parsed comments."""
        for row in self.rows.values():
            mark = parse_comment(row.comment)
            ours = mark is not None and (mark.job in self.chain.jobs or mark.job == WHOLE)
            if mark is not None and ours and job in (None, mark.job):
                yield row, mark

    def standing(self, job: str) -> Standing:
        """Return the standing of a job."""
        entry = self.chain.jobs[job]
        if entry.planned is not None:
            return "planned"
        if entry.skipped:
            return "done"
        if entry.owner:
            return self._owners_standing(job)
        if entry.latest is None:
            return "absent"
        if self.alive(entry.latest.id):
            return "active"
        if entry.latest.failure is not None or entry.latest.id in self.ended:
            return "failed"
        row = self.rows.get(entry.latest.id)
        well = ended_well(self.root, self.chain, entry.latest, row.state if row else "")
        return "unknown" if well is None else "done" if well else "failed"

    def waits_for(self, job: str) -> list[str] | None:
        """Return the Slurm jobs that a job depends on; None if one of its needs is neither done nor in the queue."""
        standings = {need: self.standing(need) for need in self.chain.jobs[job].needs}
        if not set(standings.values()) <= {"active", "done"}:
            return None
        return [self.latest(need).id for need, standing in standings.items() if standing == "active"]

    def changed(self, job: str) -> bool:
        """True if chains that wait for a job must be reconciled: it was resubmitted or is no longer active."""
        return job in self.submitted or job not in self.chain.jobs or self.standing(job) not in ("active", "planned")

    def latest(self, job: str) -> Attempt:
        """Return the latest attempt at a job that has one, in this chain or its owner."""
        entry = self.chain.jobs[job]
        if entry.is_shared and (other := self.owner(entry.owner)) is not None:
            return other.latest(job)
        assert entry.latest is not None
        return entry.latest

    def owner(self, name: str) -> Comparison | None:
        """Return the comparison of a chain that owns a stage of this one; None if it cannot be read."""
        if name not in self._owners:
            rows = {row.id: row for row in of_chain(self.everybody, name, self.root)}
            try:
                chain = chains.read(self.root, name)
                self._owners[name] = Comparison(root=self.root, chain=chain, rows=rows, ended=self.ended)
            except InputError:
                self._owners[name] = None
        return self._owners[name]

    def _owners_standing(self, job: str) -> Standing:
        """Return the standing of a job that another chain owns; "absent" if that has another recipe by now."""
        entry = self.chain.jobs[job]
        other = self.owner(entry.owner)
        theirs = other.chain.jobs.get(job) if other is not None else None
        if other is None or theirs is None or theirs.owner or theirs.recipe != entry.recipe:
            return "absent"
        return other.standing(job)


def pending(id_: str, job: str, chain: Chain, depends: str, *, own: str = "") -> Queued:
    """Return the row that squeue will show for a job (`WHOLE`: a sentinel) that was just submitted and recorded."""
    sentinel = job == WHOLE
    attempt = 1 if sentinel else len(chain.jobs[job].attempts)
    mark = chain.comment(job, attempt=attempt, own=own, sentinel=sentinel)
    return Queued(id=id_, state="PENDING", comment=mark, dependency=depends)


def waiting_for(row: Queued) -> set[str]:
    """Return the jobs that a queued job depends on."""
    parts = [part for part in row.dependency.split(",") if part.startswith("afterok:")]
    return {id_ for part in parts for id_ in re.findall(r"\d+", part)}
