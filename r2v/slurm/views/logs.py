"""`r2v logs`: the log of a job, by its id; printed, followed, or reduced to its first error.

    r2v logs bc                   # the last attempt's
    r2v logs desk_noisy 5 -f      # stage 5 of the table in docs/slurm.md
    r2v logs 4711 --errors

A requeued job appends to the same file, so a log may hold several starts; each begins with the runner's line
"r2v job started".
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
"""Job names by their numbers in the table of stages."""

_START = re.compile(r"^r2v job started: ", re.M)
_RANK = re.compile(r"^\[rank\d+\]:\s?")
_ERROR = re.compile(
    r"^(r2v: |r2v job failed|slurmstepd: error|srun: error|Killed|\w[\w.]*(Error|Exception)\b)"
    rf"|{CUDA_OOM.pattern}|(?i:{HOST_OOM.pattern})"
)


def job_id(files: ChainFiles, word: str) -> str:
    """Return the Slurm id for a job of the chain (its last attempt), its number in the table, or an id. Raises
    UsageError for any other word, InputError for a job that was never submitted."""
    chain, name = files.chain, NUMBERS.get(word, word)
    if (job := chain.jobs.get(name)) is not None:
        if job.owner:
            raise InputError(f"{chain.name}: {name} was made by another chain: r2v logs {job.owner} {name}")
        if job.latest is None:
            raise InputError(f"{chain.name}: {name} has no log ({job.skipped or 'it was not submitted'})")
        return job.latest.id
    by_hand = {attempt.id: job for job, _, attempt in files.attempts if attempt.id not in chain.slurm_ids}
    if named := [id_ for id_, job_name in by_hand.items() if job_name == name]:
        return named[-1]
    if word in files.records:
        return word
    raise UsageError(f"{chain.name} has no job {word}; {nearest(word, {*chain.jobs, *by_hand.values()})}")


def log_paths(root: Path, id_: str) -> list[Path]:
    """Return the logs of a Slurm job, the newest last."""
    return sorted((root / LOGS).glob(f"*_{id_}.out"), key=lambda path: path.stat().st_mtime)


def path_of(root: Path, id_: str) -> Path:
    """Return the log of a Slurm job. Raises InputError if there is none."""
    paths = log_paths(root, id_)
    if not paths:
        raise InputError(f"no {LOGS}/*_{id_}.out; a job makes its log when it begins: r2v status")
    return paths[-1]


def with_errors(root: Path, chain: Chain, id_: str) -> list[Path]:
    """Return the log of a Slurm job and its header's error file, if any. Raises InputError without a log."""
    attempts = ((job, attempt) for job, entry in chain.jobs.items() for attempt in entry.attempts)
    own = ((job, attempt.resources) for job, attempt in attempts if attempt.id == id_)
    named = (error_file(resources, f"{job}_{chain.name}", id_) for job, resources in own)
    return [path_of(root, id_), *(root / name for name in named if name and (root / name).is_file())]


def starts(text: str) -> list[str]:
    """Return a log split by starts of the runner; text before the first start belongs to it."""
    cuts = [match.start() for match in _START.finditer(text)][1:]
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def first_error(text: str) -> list[str]:
    """Return the lines of a log's first traceback; without one, its first line with an error; [] for neither."""
    lines = [_RANK.sub("", line) for line in text.splitlines()]
    for begin, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            # A traceback's frames are indented; its last line, the error itself, is the first that is not.
            rest = range(begin + 1, len(lines))
            end = next((at for at in rest if lines[at].strip() and not lines[at][0].isspace()), len(lines) - 1)
            return lines[begin : end + 1]
    return next(([line] for line in lines if _ERROR.search(line)), [])


def errors(text: str) -> list[str]:
    """Return the first error of each start of a log."""
    by_start = [first_error(part) for part in starts(text)]
    selected = list[str]()
    for number, lines in enumerate(by_start, start=1):
        if lines and len(by_start) > 1:
            selected.append(f"-- start {number} of {len(by_start)}")
        selected += lines
    return selected


def follow(root: Path, name: str, id_: str, pause: float = 0.5) -> Iterator[str]:
    """Yield a job's log as it grows, until its record has an end. Wait for the log of a job that has not begun. Only
    files are read; Slurm is never queried."""
    while not log_paths(root, id_):
        time.sleep(pause)

    def ended() -> bool:
        end = job_record.record(root, name, id_).exit
        return end is not None and end.get("rc") != Interrupted.exit_code

    yield from growing(path_of(root, id_), ended, pause)


def growing(path: Path, ended: Callable[[], bool], pause: float = 0.5) -> Iterator[str]:
    """Yield a file's text as it grows, until its writer has `ended`."""
    with path.open(errors="replace") as file:
        while True:
            over = ended()  # before the read, so that the last lines are not lost
            if text := file.read():
                yield text
            elif over:
                return
            else:
                time.sleep(pause)
