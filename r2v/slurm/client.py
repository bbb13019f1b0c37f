"""The Slurm client: every call of Slurm's commands, with their answers as typed values.

    rows = queue()                      # one squeue: every job of mine that has not ended
    known = accounting(["12", "13"])    # one sacct, all restarts and steps; known.down says why there is none

The text formats are read, not JSON, whose schema changes between versions. Fields are found by name: a suffix
("CANCELLED by 0", "OUT_OF_ME+") is cut off, a field that this version lacks is left out. Accounting that is down or
late is an answer, not an error: a job that sacct does not know has not failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.slurm.command import NO_SLURM, NoSlurm, SlurmRefused, call, one_line, outside, present, require, run
from r2v.slurm.sacct import ENDED, FIELDS, SacctRow, given, memory, read_accounting

__all__ = [
    "Accounting",
    "CHAIN_MARK",
    "ENDED",
    "HELPERS_MARK",
    "NO_SLURM",
    "NoSlurm",
    "Partition",
    "Queued",
    "SacctRow",
    "SlurmRefused",
    "SubmitCheck",
    "accounting",
    "cancel",
    "job_number",
    "memory",
    "one_line",
    "outside",
    "partitions",
    "present",
    "qos",
    "queue",
    "requeue",
    "require",
    "sbatch",
    "show",
    "test_only",
    "update",
]

_SEPARATOR = "\x1f"
_QUEUE = {
    "id": "%i",
    "state": "%T",
    "dependency": "%E",
    "reason": "%r",
    "start": "%S",
    "elapsed": "%M",
    "limit": "%l",
    "nodes": "%N",
    "name": "%j",
    "partition": "%P",
    "submitted": "%V",
    "comment": "%k",
    "folder": "%Z",
}


def job_number(job_id: str) -> tuple[int, int]:
    """What job ids are ordered by: "1234" is (1234, -1), task 4 of the array 123, "123_4", is (123, 4), and an array
    whose tasks still wait together, "123_[0-7]", stands before them. int("123_4") would be 1234, without a word."""
    job, _, task = job_id.partition("_")
    return (int(job) if job.isdigit() else 0, int(task) if task.isdigit() else -1)


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job in the queue, from squeue. Times as Slurm writes them, "" where it knows none."""

    id: str
    state: str
    comment: str
    dependency: str
    reason: str
    start: str
    elapsed: str
    limit: str
    nodes: str
    name: str
    partition: str
    submitted: str
    folder: str = ""
    """Where it was submitted to run: the checkout."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """What sacct knows: the starts of each job, oldest first. `down` says why it knows nothing."""

    jobs: dict[str, list[SacctRow]] = field(default_factory=dict)
    down: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubmitCheck:
    """The answer of `sbatch --test-only`: whether the job would be accepted, its message, and the estimated start."""

    ok: bool
    line: str
    start: str | None = None


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition, from sinfo. `memory` in MB of its largest node."""

    name: str
    memory: int
    max_time: str
    gres: str
    up: bool


CHAIN_MARK, HELPERS_MARK = "r2v", "r2v-helpers"
"""What the comment of a chain's job, and that of a helper beside one, begins with."""


def queue(name: str | None = None, root: Path = Path(), *, mark: str = CHAIN_MARK) -> list[Queued]:
    """My jobs that have not ended, or those of one chain of this checkout, or its helpers; one squeue."""
    form = _SEPARATOR.join(_QUEUE.values())
    output = call(["squeue", "--me", "--noheader", "--array", "-o", form])
    rows = []
    for line in output.splitlines():
        values = [given(word) for word in line.split(_SEPARATOR)]
        if len(values) == len(_QUEUE):
            rows.append(Queued(**dict(zip(_QUEUE, values, strict=True))))
    return rows if name is None else of_chain(rows, name, root, mark=mark)


def of_chain(rows: Iterable[Queued], name: str, root: Path, *, mark: str = CHAIN_MARK) -> list[Queued]:
    """Those of these jobs that are a chain's of this checkout, or its helpers."""
    return [row for row in rows if row.comment.startswith(f"{mark}:{name}/") and _is_checkout(row.folder, root)]


def helpers_comment(name: str, job: str) -> str:
    """What the helpers beside a chain's job are known by in the queue; no chain's job is known so."""
    return f"{HELPERS_MARK}:{name}/{job}"


def _is_checkout(folder: str, root: Path) -> bool:
    """Whether a job's folder is this checkout, by any path to it; true where Slurm does not say."""
    try:
        return not folder or folder == str(root.resolve()) or Path(folder).samefile(root)
    except OSError:
        return False


def accounting(ids: Sequence[str]) -> Accounting:
    """Every start and step of these jobs; one sacct, unless this version lacks a field."""
    if not ids:
        return Accounting()
    fields = list(FIELDS)
    while True:
        try:
            text = call(
                ["sacct", "--noheader", "--parsable2", "--duplicates", "-o", ",".join(fields), "-j", ",".join(ids)]
            )
        except EnvironmentFault as error:
            lacking = re.search(r'Invalid field requested: "(\w+)"', str(error))
            if lacking is None or lacking[1] not in fields:
                return Accounting(down=str(error))
            fields.remove(lacking[1])
            continue
        return Accounting(jobs=read_accounting(text, fields))


def show(id_: str) -> dict[str, str]:
    """What the controller still knows of a job (it forgets a finished one after minutes); {} for nothing."""
    try:
        text = call(["scontrol", "show", "job", "-o", id_])
    except SlurmRefused:
        return {}
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def sbatch(arguments: Sequence[str], script: str) -> str:
    """Submit a script's text; returns the job id. Raises SlurmRefused with Slurm's reason."""
    output = call(["sbatch", "--parsable", *arguments], script)
    return output.strip().splitlines()[-1].split(";")[0]  # after any line that a submit filter prints; id;cluster


def test_only(arguments: Sequence[str], script: str = "#!/bin/bash\ntrue\n") -> SubmitCheck:
    """Ask Slurm whether a job would be accepted, and when it would start. Submits nothing."""
    done = run(["sbatch", "--test-only", *arguments], script)
    line = one_line(done.stderr or done.stdout)
    start = re.search(r"to start at (\S+)", line)
    return SubmitCheck(ok=done.returncode == 0, line=line, start=start[1] if start else None)


def cancel(ids: Sequence[str]) -> None:
    """End these jobs, in one call. Those that have ended are passed over."""
    if ids:
        call(["scancel", "--quiet", *ids])


def update(id_: str, **fields: str) -> bool:
    """Change a waiting job of mine; False where it is waiting no more."""
    try:
        call(["scontrol", "update", f"jobid={id_}", *(f"{name}={value}" for name, value in fields.items())])
    except SlurmRefused:
        return False
    return True


def requeue(id_: str) -> bool:
    """Put a job back into the queue under its own id; False where the site does not allow it."""
    try:
        call(["scontrol", "requeue", id_])
    except EnvironmentFault:
        return False
    return True


def partitions() -> list[Partition]:
    """The partitions, each with its largest node; one sinfo."""
    rows: dict[str, Partition] = {}
    for line in call(["sinfo", "--noheader", "--all", "-o", "%P|%m|%l|%G|%a"]).splitlines():
        name, size, limit, gres, up = (*line.split("|"), "", "", "", "")[:5]
        name, size = name.rstrip("*"), size.rstrip("+")
        before = rows.get(name)
        kinds = [word for word in ((before.gres if before else ""), given(gres)) if word]
        rows[name] = Partition(
            name=name,
            max_time=limit,
            gres=",".join(kinds),
            up=up == "up",
            memory=max(int(size) if size.isdigit() else 0, before.memory if before else 0),
        )
    return list(rows.values())


def qos() -> list[str] | None:
    """The names of the site's QOS; None where accounting does not tell."""
    try:
        return call(["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"]).split()
    except EnvironmentFault:
        return None
