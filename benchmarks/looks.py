"""Ledger of looks: the tasks that each study has read, so that a second look is refused or explained.

    looks.open_look(LEDGER, look_at("desk", 30866, 100, "benchmarks/outcomes/training_seeds"))

A table is evidence only if no choice was made on its tasks. So a study records its range of tasks in a committed file
before it plays; it may resume its own range, and another study's is refused unless a reason for the second look is
given, which the ledger keeps.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass
from pathlib import Path

from r2v.errors import UsageError
from r2v.storage.artifact_manifest import git_commit

LEDGER = Path("benchmarks/outcomes/looks.jsonl")


@dataclass(frozen=True, kw_only=True)
class Look:
    """Tasks `first` to `first + count - 1` of a world, read by a study: the folder of its pieces, or a description."""

    world: str
    first: int
    count: int
    study: str
    commit: str
    date: str
    again: str = ""
    """Why tasks that were read before are read again; empty: none was."""

    def overlaps(self, other: Look) -> bool:
        """True if both read a task."""
        apart = self.first + self.count <= other.first or other.first + other.count <= self.first
        return self.world == other.world and not apart


def look_at(world: str, first: int, count: int, study: str, again: str = "") -> Look:
    """Return a look that begins now, by this checkout's code."""
    today = f"{datetime.date.today()}"
    return Look(world=world, first=first, count=count, study=study, commit=git_commit() or "", date=today, again=again)


def read_looks(path: Path) -> list[Look]:
    """Load all looks of a ledger, oldest first."""
    return [Look(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def open_look(path: Path, look: Look) -> None:
    """Record a look; one that the study has recorded before stays as it is. Raises UsageError for tasks that another
    study, or this one in another range, has read, unless `look.again` gives the reason."""
    looks = read_looks(path)
    if any((other.study, other.first, other.count) == (look.study, look.first, look.count) for other in looks):
        return
    read = next((other for other in looks if other.overlaps(look)), None)
    if read is not None and not look.again:
        raise UsageError(
            f"{look.world} tasks {look.first} to {look.first + look.count - 1}: {read.study} read {read.first} to "
            f"{read.first + read.count - 1} on {read.date}; take unread tasks (--first-task), or say why "
            "with --again"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as ledger:  # a study that begins in the same second loses no line
        ledger.write(json.dumps(dataclasses.asdict(look)) + "\n")
