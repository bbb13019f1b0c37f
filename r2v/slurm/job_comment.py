"""The comment of a Slurm job: by it squeue and sacct know whose job it is, beside what a header says in its own.

comment("desk_noisy", "bc", "0f3c")      # r2v:desk_noisy/bc/0f3c: chain, stage, hash of the configuration
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
    own: str = ""
    """What the header says before it."""


def comment(name: str, job: str, sha: str, *, sentinel: bool = False, own: str = "") -> str:
    """The comment that marks a Slurm job as ours, in squeue and sacct alike; behind the header's `own`, if it has one.

    >>> comment("desk_noisy", "bc", "0f3c", own="grant 42")
    'grant 42 r2v:desk_noisy/bc/0f3c'
    """
    return f"{own} r2v:{name}/{job}{'~heal' if sentinel else ''}/{sha}".lstrip()


def parse_comment(text: str) -> JobComment | None:
    """A comment made by `comment`, read; None for any other."""
    match = re.fullmatch(r"(.*\s)?r2v:(\S+)/(\w+)(~heal)?/([0-9a-f]+)", text.strip())
    if match is None:
        return None
    own = (match[1] or "").strip()
    return JobComment(name=match[2], job=match[3], sha=match[5], sentinel=bool(match[4]), own=own)
