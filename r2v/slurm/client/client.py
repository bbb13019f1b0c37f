"""The Slurm client: every call of Slurm's commands, with their answers as typed values.

    rows = queue()                      # one squeue: every job of mine that has not ended
    known = accounting(["12", "13"])    # one sacct, all restarts and steps; known.down says why there is none

The text formats are read, not JSON, whose schema changes between versions. Fields are found by name: a suffix
("CANCELLED by 0", "OUT_OF_ME+") is cut off, a field that this version lacks is left out. Accounting that is down or
late is an answer, not an error: a job that sacct does not know has not failed.

This is the one door to Slurm. Questions, `cancel` and `update` are repeated while nobody answers; a submission is not:
it is looked for by its comment first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.slurm.client.command import (
    NoAnswer,
    SlurmRefused,
    ask,
    call,
    once,
    one_line,
    patience,
    pauses,
    present,
    terminal,
)
from r2v.slurm.client.sacct import FIELDS, SacctRow, given, read_accounting

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
    "comment": "%k",
    "folder": "%Z",
}


def job_number(job_id: str) -> tuple[int, int]:
    """The key by which job ids are ordered: "1234" is (1234, -1), task 4 of the array 123, "123_4", is (123, 4), and an
    array whose tasks still wait together, "123_[0-7]", stands before them. int("123_4") would be 1234, silently."""
    job, _, task = job_id.partition("_")
    return (int(job) if job.isdigit() else 0, int(task) if task.isdigit() else -1)


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job in the queue, from squeue. Times as Slurm writes them, "" where it knows none."""

    id: str
    state: str
    comment: str
    dependency: str = ""
    reason: str = ""
    start: str = ""
    elapsed: str = ""
    limit: str = ""
    nodes: str = ""
    folder: str = ""
    """The folder in which it was submitted to run: the checkout."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """The answer of sacct: the starts of each job, oldest first. `down` says why it knows nothing."""

    jobs: dict[str, list[SacctRow]] = field(default_factory=dict)
    down: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubmitCheck:
    """The answer of `sbatch --test-only`: whether the job would be accepted, and its message."""

    ok: bool
    line: str


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition, from sinfo. `memory` in MB and `cpus` of its largest nodes; 0: not told."""

    name: str
    memory: int
    cpus: int
    max_time: str
    gres: str
    up: bool


ACCOUNTING_PATIENCE = 2.0
"""Seconds for which accounting is asked again: it may be down for hours, and is not needed to go on."""
CHAIN_MARK, HELPERS_MARK = "r2v", "r2v-helpers"
"""What the comment of a chain's job, and that of a helper beside one, begins with."""
UNSETTLED = 10.0
"""Seconds after which a submission that nobody answered, and that is not in the queue, is taken for lost: Slurm's own
limit on a message. One that comes later still is found by the next reconciliation, and cancelled."""
_UNREACHED = re.compile("connect failure|Connection refused")
"""Words of a command that has reached nobody."""


def queue(
    name: str | None = None,
    root: Path = Path(),
    *,
    mark: str = CHAIN_MARK,
    ended: bool = False,
    users: Collection[str] = (),
) -> list[Queued]:
    """My jobs that have not ended, or those of one chain of this checkout, or its helpers; one squeue. `ended`: also
    those that ended a while ago and the controller still remembers; `users`: those of these accounts, not mine."""
    form = _SEPARATOR.join(_QUEUE.values())
    states = ["--states=all"] if ended else []
    whose = f"--user={','.join(sorted(users))}" if users else "--me"
    output = call(["squeue", whose, "--noheader", "--array", *states, "-o", form])
    rows = []
    for line in output.splitlines():
        values = [given(word) for word in line.split(_SEPARATOR)]
        if len(values) == len(_QUEUE):
            rows.append(Queued(**dict(zip(_QUEUE, values, strict=True))))
    return rows if name is None else of_chain(rows, name, root, mark=mark)


def of_chain(rows: Iterable[Queued], name: str, root: Path, *, mark: str = CHAIN_MARK) -> list[Queued]:
    """Those of these jobs that are a chain's of this checkout, or its helpers."""
    return [row for row in rows if f" {mark}:{name}/" in f" {row.comment}" and _is_checkout(row.folder, root)]


def _is_checkout(folder: str, root: Path) -> bool:
    """True if a job's folder is this checkout, by any path to it, or Slurm does not say."""
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
                ["sacct", "--noheader", "--parsable2", "--duplicates", "-o", ",".join(fields), "-j", ",".join(ids)],
                limit=min(patience(), ACCOUNTING_PATIENCE),
            )
        except EnvironmentFault as error:
            lacking = re.search(r'Invalid field requested: "(\w+)"', str(error))
            if lacking is None or lacking[1] not in fields:
                return Accounting(down=str(error))
            fields.remove(lacking[1])
            continue
        return Accounting(jobs=read_accounting(text, fields))


def show(id_: str) -> dict[str, str]:
    """The controller's fields of a job (it forgets a finished one after minutes); {} for none."""
    try:
        text = call(["scontrol", "show", "job", "-o", id_])
    except SlurmRefused:
        return {}
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def sbatch(arguments: Sequence[str], script: str, *, known: Collection[str] = ()) -> str:
    """Submit a script's text; returns the job id.

    Where no answer comes it is looked for: a job of mine with the comment that `arguments` give it, which is none of
    those `known`, is this one. Only one that is not there is submitted again. Raises SlurmRefused with Slurm's reason,
    NoAnswer where it stays unknown whether it was submitted.
    """
    comment = next((word.partition("=")[2] for word in arguments if word.startswith("--comment=")), "")
    waiting, asked = pauses(), terminal().monotonic()
    while True:
        try:
            output = once(["sbatch", "--parsable", *arguments], script)
            return output.strip().splitlines()[-1].split(";")[0]  # after any line that a filter prints; id;cluster
        except NoAnswer as error:
            lost = not _UNREACHED.search(str(error))
            while (id_ := _submitted(comment, known)) is None:
                if not comment or next(waiting, None) is None:
                    raise
                if not lost or terminal().monotonic() - asked > UNSETTLED:
                    break
            if id_:
                return id_
            asked = terminal().monotonic()


def _submitted(comment: str, known: Collection[str]) -> str | None:
    """The newest job of mine with this comment, ended or not, that is none of those known; None where there is none, or
    nobody can tell."""
    try:
        rows = [row.id for row in queue(ended=True) if comment and row.comment == comment and row.id not in known]
    except EnvironmentFault:
        return None
    return max(rows, key=job_number, default=None)


def test_only(arguments: Sequence[str], script: str = "#!/bin/bash\ntrue\n") -> SubmitCheck:
    """Ask Slurm whether a job would be accepted. Submits nothing."""
    done = ask(["sbatch", "--test-only", *arguments], script)
    return SubmitCheck(ok=done.returncode == 0, line=one_line(done.stderr or done.stdout))


def takes_option(name: str, value: str) -> bool:
    """True if the sbatch that is here knows an option of this name; False without Slurm."""
    return present() and "unrecognized option" not in test_only([f"--{name}={value}"]).line


def cancel(ids: Sequence[str]) -> None:
    """End these jobs, in one call. Those that have ended are skipped."""
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
    """Put a job back into the queue under its own id; False where the site does not allow it, or nobody answers."""
    try:
        call(["scontrol", "requeue", id_])  # of my own running job: carried out once, it ends who would say it twice
    except EnvironmentFault:
        return False
    return True


def partitions() -> list[Partition]:
    """The partitions, each with its largest node; one sinfo."""
    rows: dict[str, Partition] = {}
    for line in call(["sinfo", "--noheader", "--all", "-o", "%P|%m|%l|%G|%a|%c"]).splitlines():
        name, size, limit, gres, up, cpus = (*line.split("|"), "", "", "", "", "")[:6]
        name = name.rstrip("*")
        before = rows.get(name)
        kinds = [word for word in ((before.gres if before else ""), given(gres)) if word]
        rows[name] = Partition(
            name=name,
            max_time=limit,
            gres=",".join(kinds),
            up=up == "up",
            memory=max(_least(size), before.memory if before else 0),
            cpus=max(_least(cpus), before.cpus if before else 0),
        )
    return list(rows.values())


def _least(size: str) -> int:
    """A number of sinfo's, such as 8 or, where nodes differ, 8+; 0 for what is none."""
    size = size.strip().rstrip("+")
    return int(size) if size.isdigit() else 0


def qos() -> list[str] | None:
    """The names of the site's QOS; None where accounting does not tell."""
    try:
        return call(["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"]).split()
    except EnvironmentFault:
        return None
