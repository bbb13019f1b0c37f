"""A comparison: one look at a chain, at what Slurm says of its jobs, and at what these say of themselves."""

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

Standing = Literal["active", "planned", "done", "failed", "untold", "absent"]
"""Of a job: in the queue; to be submitted; ended well; ended badly; ended, nobody says yet how; never submitted."""
NEVER = "DependencyNeverSatisfied"
"""Slurm's word for a job that waits for what has failed."""


@dataclass(kw_only=True)
class Comparison:
    """One look at a chain and at what Slurm says of its jobs. The caller holds the chain's lock."""

    root: Path
    chain: Chain
    rows: dict[str, Queued]
    """By id: the chain's jobs in the queue, and those that the controller remembers."""
    asked: frozenset[str] = frozenset()
    """Those of which squeue itself told."""
    ended: frozenset[str] = frozenset()
    """Jobs that tell their own end: still in the queue, and as good as gone."""
    awaited: str = ""
    """The job of which the end is waited for; `WHOLE`: of whichever has ended."""
    undone: list[str] = field(default_factory=list)
    """The actions that were not possible now, a line each."""
    untold: set[str] = field(default_factory=set)
    """Jobs that have ended, nobody says yet how: their sentinel stays."""
    submitted: list[str] = field(default_factory=list)
    refusal: str = ""
    """Of what a person asked to be submitted: why the rest was left."""

    everybody: list[Queued] = field(default_factory=list)
    """My jobs of every chain, from the same squeue."""
    scope: frozenset[str] | None = None
    """The jobs that are looked after; None: all of them."""
    _owners: dict[str, Comparison | None] = field(default_factory=dict)

    def write(self, chain: Chain) -> None:
        """Make this the chain."""
        self.chain = chain
        chains.write(self.root, chain)

    @property
    def jobs(self) -> list[str]:
        """The jobs that are looked after, in their order."""
        return [job for job in self.chain.jobs if self.scope is None or job in self.scope]

    def alive(self, id_: str) -> bool:
        """True if a job has not ended."""
        return self.in_queue(id_) and id_ not in self.ended

    def in_queue(self, id_: str) -> bool:
        """True if Slurm says that a job has not ended."""
        return id_ in self.rows and is_alive(self.rows[id_].state)

    def marked(self, job: str | None = None) -> Iterator[tuple[Queued, JobComment]]:
        """The chain's rows (of one job) with their comments read."""
        for row in self.rows.values():
            mark = parse_comment(row.comment)
            ours = mark is not None and (mark.job in self.chain.jobs or mark.job == WHOLE)
            if mark is not None and ours and job in (None, mark.job):
                yield row, mark

    def standing(self, job: str) -> Standing:
        """The standing of a job."""
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
        return "untold" if well is None else "done" if well else "failed"

    def waits_for(self, job: str) -> list[str] | None:
        """The Slurm jobs that a job must wait for; None where one of its needs is not there to be waited for."""
        standings = {need: self.standing(need) for need in self.chain.jobs[job].needs}
        if not set(standings.values()) <= {"active", "done"}:
            return None
        return [self.latest(need).id for need, standing in standings.items() if standing == "active"]

    def changed(self, job: str) -> bool:
        """True if a chain that waits for a job would see another one, or none, after this look."""
        return job in self.submitted or job not in self.chain.jobs or self.standing(job) not in ("active", "planned")

    def latest(self, job: str) -> Attempt:
        """The latest attempt at a job that has one, whichever chain makes it."""
        entry = self.chain.jobs[job]
        if entry.is_shared and (other := self.owner(entry.owner)) is not None:
            return other.latest(job)
        assert entry.latest is not None
        return entry.latest

    def owner(self, name: str) -> Comparison | None:
        """The same look at a chain that makes something for this one; None where it cannot be read."""
        if name not in self._owners:
            rows = {row.id: row for row in of_chain(self.everybody, name, self.root)}
            try:
                chain = chains.read(self.root, name)
                self._owners[name] = Comparison(root=self.root, chain=chain, rows=rows, ended=self.ended)
            except InputError:
                self._owners[name] = None
        return self._owners[name]

    def _owners_standing(self, job: str) -> Standing:
        """The standing of a job that another chain makes; "absent" where that makes something else by now."""
        entry = self.chain.jobs[job]
        other = self.owner(entry.owner)
        theirs = other.chain.jobs.get(job) if other is not None else None
        if other is None or theirs is None or theirs.owner or theirs.recipe != entry.recipe:
            return "absent"
        return other.standing(job)


def pending(id_: str, job: str, chain: Chain, depends: str, *, own: str = "") -> Queued:
    """The row of squeue of a job (`WHOLE`: a sentinel) that was submitted and written down a moment ago."""
    sentinel = job == WHOLE
    attempt = 1 if sentinel else len(chain.jobs[job].attempts)
    mark = chain.comment(job, attempt=attempt, own=own, sentinel=sentinel)
    return Queued(id=id_, state="PENDING", comment=mark, dependency=depends)


def waiting_for(row: Queued) -> set[str]:
    """The jobs that a job in the queue waits for."""
    parts = [part for part in row.dependency.split(",") if part.startswith("afterok:")]
    return {id_ for part in parts for id_ in re.findall(r"\d+", part)}
