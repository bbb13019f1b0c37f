"""The comment of a Slurm job: by it squeue and sacct know whose job it is, beside what a header says in its own.

comment("desk_noisy", "bc", "0f3c")              # r2v:desk_noisy/bc/0f3c: chain, stage, hash of the configuration
comment("desk_noisy", "bc", "0f3c", attempt=2)   # r2v:desk_noisy/bc/0f3c.2

The number tells an attempt that Slurm submits late, when the next one is planned already, from that next one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WHOLE = "all"
"""In place of a job in a comment: a sentinel that watches all jobs of its chain."""


@dataclass(frozen=True, kw_only=True)
class JobComment:
    """The comment of a Slurm job, read: which chain and stage it belongs to, and with which configuration."""

    name: str
    job: str
    sha: str
    sentinel: bool
    attempt: int = 1
    own: str = ""
    """What the header says before it."""


def comment(name: str, job: str, sha: str, *, attempt: int = 1, sentinel: bool = False, own: str = "") -> str:
    """The comment that marks a Slurm job as ours, in squeue and sacct alike; behind the header's `own`, if it has one.

    >>> comment("desk_noisy", "bc", "0f3c", own="grant 42")
    'grant 42 r2v:desk_noisy/bc/0f3c'
    """
    number = f".{attempt}" if attempt > 1 else ""
    return f"{own} r2v:{name}/{job}{'~heal' if sentinel else ''}/{sha}{number}".lstrip()


def parse_comment(text: str) -> JobComment | None:
    """A comment made by `comment`, read; None for any other."""
    match = re.fullmatch(r"(.*\s)?r2v:(\S+)/(\w+)(~heal)?/([0-9a-f]+)(?:\.(\d+))?", text.strip())
    if match is None:
        return None
    own = (match[1] or "").strip()
    attempt = int(match[6] or 1)
    return JobComment(name=match[2], job=match[3], sha=match[5], sentinel=bool(match[4]), attempt=attempt, own=own)
