"""`r2v logs`: the log of a job, by its id; printed, followed, or cut down to what went wrong first.

    r2v logs bc                   # the last attempt's
    r2v logs desk_noisy 5 -f      # stage 5 of the table in docs/slurm.md
    r2v logs 4711 --errors

A job that was put back into the queue goes on in the same file, so a log may hold several starts; each begins with
the line in which the runner says what it starts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from r2v.errors import CUDA_OOM, HOST_OOM, InputError, Interrupted, UsageError, nearest
from r2v.pipeline.jobs import JOBS
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Chain
from r2v.slurm.site.directives import error_file
from r2v.slurm.views.sources import ChainFiles
from r2v.storage.paths import LOGS

NUMBERS = {row.number: row.name for row in JOBS}
"""The jobs by their numbers in the table of stages."""

_START = re.compile(r"^r2v job \S+: \w+ on ", re.M)
_RANK = re.compile(r"^\[rank\d+\]:\s?")
_ERROR = re.compile(
    r"^(r2v: |r2v job \S+: \w+ failed|slurmstepd: error|srun: error|Killed|\w[\w.]*(Error|Exception)\b)"
    rf"|{CUDA_OOM.pattern}|(?i:{HOST_OOM.pattern})"
)


def job_id(files: ChainFiles, word: str) -> str:
    """The Slurm id that a word means: a job of the chain (its last attempt), its number, or an id. Raises
    UsageError for what is none of them, InputError for a job that was never submitted."""
    chain, name = files.chain, NUMBERS.get(word, word)
    if (job := chain.jobs.get(name)) is not None:
        if job.owner:
            raise InputError(f"{chain.name}: {name} was made by another chain: r2v logs {job.owner} {name}")
        if job.latest is None:
            raise InputError(f"{chain.name}: {name} has no log ({job.skipped or 'it was not submitted'})")
        return job.latest.id
    by_hand = {one.id: made for made, _, one in files.attempts if one.id not in chain.slurm_ids}
    if named := [id_ for id_, made in by_hand.items() if made == name]:
        return named[-1]
    if word in files.records:
        return word
    raise UsageError(f"{chain.name} has no job {word}; {nearest(word, {*chain.jobs, *by_hand.values()})}")


def log_paths(root: Path, id_: str) -> list[Path]:
    """The logs of a Slurm job, whichever door it came by, the newest last."""
    return sorted((root / LOGS).glob(f"*_{id_}.out"), key=lambda path: path.stat().st_mtime)


def path_of(root: Path, id_: str) -> Path:
    """The log of a Slurm job. Raises InputError where there is none."""
    paths = log_paths(root, id_)
    if not paths:
        raise InputError(f"no {LOGS}/*_{id_}.out; a job makes its log when it begins: r2v status")
    return paths[-1]


def with_errors(root: Path, chain: Chain, id_: str) -> list[Path]:
    """The log of a Slurm job, and the file that its header gives errors, where it has one. Raises InputError where
    there is no log."""
    attempts = ((job, attempt) for job, entry in chain.jobs.items() for attempt in entry.attempts)
    named = (error_file(one.resources, f"{job}_{chain.name}", id_) for job, one in attempts if one.id == id_)
    return [path_of(root, id_), *(root / name for name in named if name and (root / name).is_file())]


def starts(text: str) -> list[str]:
    """A log cut where the runner began anew; what stands before the first start belongs to it."""
    cuts = [match.start() for match in _START.finditer(text)][1:]
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def first_error(text: str) -> list[str]:
    """The first traceback of a log, whole; where it has none, the first line that tells of an error."""
    lines = [_RANK.sub("", line) for line in text.splitlines()]
    for begin, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            # A traceback's frames are indented; its last line, the error itself, is the first that is not.
            rest = range(begin + 1, len(lines))
            end = next((at for at in rest if lines[at].strip() and not lines[at][0].isspace()), len(lines) - 1)
            return lines[begin : end + 1]
    return next(([line] for line in lines if _ERROR.search(line)), [])


def errors(text: str) -> list[str]:
    """The first error of each start of a log."""
    by_start = [first_error(part) for part in starts(text)]
    found = list[str]()
    for number, lines in enumerate(by_start, start=1):
        if lines and len(by_start) > 1:
            found.append(f"-- start {number} of {len(by_start)}")
        found += lines
    return found


def follow(root: Path, name: str, id_: str, pause: float = 0.5) -> Iterator[str]:
    """Yield a job's log, and what is added to it until its own record says that it has ended. Waits for the
    log of a job that has yet to begin. Reads files only: however long it lasts, Slurm is not asked."""
    while not log_paths(root, id_):
        time.sleep(pause)

    def ended() -> bool:
        end = job_record.record(root, name, id_).exit
        return end is not None and end.get("rc") != Interrupted.exit_code

    yield from growing(path_of(root, id_), ended, pause)


def growing(path: Path, ended: Callable[[], bool], pause: float = 0.5) -> Iterator[str]:
    """Yield a file's text, and what is added to it until its writer has `ended`."""
    with path.open(errors="replace") as file:
        while True:
            over = ended()
            if text := file.read():
                yield text
            elif over:
                return
            else:
                time.sleep(pause)
