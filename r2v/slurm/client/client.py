"""The Slurm client: every call of Slurm's commands, with their answers as typed values.

    rows = queue()                       # one squeue: this user's jobs that have not ended
    usage = accounting(["12", "13"])     # one sacct, all restarts and steps; usage.down is the error, if it failed

It reads the text formats, not JSON, whose schema changes between versions. Fields are found by name: a suffix
("CANCELLED by 0", "OUT_OF_ME+") is cut off, a field that this version lacks is left out. Accounting that is down or
late is an answer, not an error: a job missing from sacct has not failed.

All calls of Slurm pass through here. Queries, `cancel` and `update` are retried while Slurm does not answer. A
submission is retried only after its comment was not found in the queue, since it may have been carried out.
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
    """Return the sort key of a job id: "1234" gives (1234, -1), array task "123_4" gives (123, 4), and a pending array,
    "123_[0-7]", sorts before its tasks. int("123_4") would be 1234, silently."""
    job, _, task = job_id.partition("_")
    return (int(job) if job.isdigit() else 0, int(task) if task.isdigit() else -1)


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job in the queue, from squeue. Times as Slurm writes them, "" for none."""

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
    """Its working folder: the checkout."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """The answer of sacct: the starts of each job, oldest first. `down` is the error if sacct failed."""

    jobs: dict[str, list[SacctRow]] = field(default_factory=dict)
    down: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubmitCheck:
    """The answer of `sbatch --test-only`: `ok` if the job would be accepted, and the message."""

    ok: bool
    line: str


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition, from sinfo. `memory` (MB) and `cpus` of its largest nodes; 0: unknown."""

    name: str
    memory: int
    cpus: int
    max_time: str
    gres: str
    up: bool


ACCOUNTING_PATIENCE = 2.0
"""Seconds for which sacct is retried: accounting may be down for hours, and healing works without it."""
CHAIN_MARK, HELPERS_MARK = "r2v", "r2v-helpers"
"""Prefixes of the comments of a chain's jobs and of their helpers."""
UNSETTLED = 10.0
"""Seconds after which an unanswered submission that is not in the queue counts as lost: Slurm's own limit on a message.
If it arrives later, the next reconciliation finds and cancels it."""
_UNREACHED = re.compile("connect failure|Connection refused")
"""Errors that prove that a command did not reach the controller."""


def queue(
    name: str | None = None,
    root: Path = Path(),
    *,
    mark: str = CHAIN_MARK,
    ended: bool = False,
    users: Collection[str] = (),
) -> list[Queued]:
    """Return this user's jobs that have not ended, or with `name` those of one chain of this checkout (its helpers:
    `mark`); one squeue. `ended` adds ended jobs that the controller still remembers; `users` selects other accounts."""
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
    """Return the rows that belong to a chain of this checkout, or its helpers with `HELPERS_MARK`."""
    return [row for row in rows if f" {mark}:{name}/" in f" {row.comment}" and _is_checkout(row.folder, root)]


def _is_checkout(folder: str, root: Path) -> bool:
    """True if a job's folder is this checkout, by any path to it, or unknown."""
    try:
        return not folder or folder == str(root.resolve()) or Path(folder).samefile(root)
    except OSError:  # another checkout, removed since or not mounted on this machine
        return False


def accounting(ids: Sequence[str]) -> Accounting:
    """Return every start and step of these jobs; one sacct, unless this version lacks a field."""
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
            # An older Slurm lacks some fields: ask again without each that it names.
            lacking = re.search(r'Invalid field requested: "(\w+)"', str(error))
            if lacking is None or lacking[1] not in fields:
                return Accounting(down=str(error))
            fields.remove(lacking[1])
            continue
        return Accounting(jobs=read_accounting(text, fields))


def show(id_: str) -> dict[str, str]:
    """Return the controller's fields of a job (it forgets a finished one after minutes); {} for none."""
    try:
        text = call(["scontrol", "show", "job", "-o", id_])
    except SlurmRefused:  # an unknown id is an error of scontrol
        return {}
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def sbatch(arguments: Sequence[str], script: str, *, recorded: Collection[str] = ()) -> str:
    """Submit a script's text; returns the job id.

    Without an answer, the job is searched for by the comment in `arguments`, ignoring the ids in `recorded`; it is
    submitted again only if it is not there. Raises SlurmRefused, and NoAnswer if its fate stays unknown.
    """
    comment = next((word.partition("=")[2] for word in arguments if word.startswith("--comment=")), "")
    retries, sent_at = pauses(), terminal().monotonic()
    while True:
        try:
            output = once(["sbatch", "--parsable", *arguments], script)
            return output.strip().splitlines()[-1].split(";")[0]  # after any line that a filter prints; id;cluster
        except NoAnswer as error:
            # A lost answer leaves the submission in doubt; an unreachable controller does not.
            lost = not _UNREACHED.search(str(error))
            while (id_ := _submitted(comment, recorded)) is None:
                if not comment or next(retries, None) is None:
                    raise
                if not lost or terminal().monotonic() - sent_at > UNSETTLED:
                    break
            if id_:
                return id_
            sent_at = terminal().monotonic()


def _submitted(comment: str, recorded: Collection[str]) -> str | None:
    """Return this user's newest job with this comment, `recorded` ids left out; None for none, or without an answer."""
    try:
        rows = [row.id for row in queue(ended=True) if comment and row.comment == comment and row.id not in recorded]
    except EnvironmentFault:  # the caller searches again after a pause
        return None
    return max(rows, key=job_number, default=None)


def test_only(arguments: Sequence[str], script: str = "#!/bin/bash\ntrue\n") -> SubmitCheck:
    """Test if Slurm would accept a job. Submits nothing."""
    done = ask(["sbatch", "--test-only", *arguments], script)
    return SubmitCheck(ok=done.returncode == 0, line=one_line(done.stderr or done.stdout))


def takes_option(name: str, value: str) -> bool:
    """True if the installed sbatch knows an option of this name; False without Slurm."""
    return present() and "unrecognized option" not in test_only([f"--{name}={value}"]).line


def cancel(ids: Sequence[str]) -> None:
    """Cancel these jobs, in one call. Ended ones are skipped."""
    if ids:
        call(["scancel", "--quiet", *ids])


def update(id_: str, **fields: str) -> bool:
    """Change a pending job; False if it is no longer pending."""
    try:
        call(["scontrol", "update", f"jobid={id_}", *(f"{name}={value}" for name, value in fields.items())])
    except SlurmRefused:  # it has started or ended since it was listed
        return False
    return True


def requeue(id_: str) -> bool:
    """Requeue a job under its own id; False if the site does not allow it, or Slurm does not answer."""
    try:
        call(["scontrol", "requeue", id_])  # safe to repeat: the caller is the job, which the first requeue ends
    except EnvironmentFault:  # the caller exits and is healed by a new job instead
        return False
    return True


def partitions() -> list[Partition]:
    """Return the partitions, each with its largest node; one sinfo."""
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
    """Parse a number of sinfo: 8, or 8+ if nodes differ; 0 if it is no number."""
    size = size.strip().rstrip("+")
    return int(size) if size.isdigit() else 0


def qos() -> list[str] | None:
    """Return the names of the site's QOS; None if accounting does not answer."""
    try:
        return call(["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"]).split()
    except EnvironmentFault:  # many sites run without accounting
        return None
