"""`r2v status`: the table of a chain with its warnings, as text, as JSON, and repeated (`--watch`).

    r2v status                 # every chain
    r2v status desk_noisy --json
    r2v status --watch         # repeated until no job is active

While watching, the jobs' records are read often, as they are files; Slurm is queried once a minute at most, and each
frame gives the age of its last answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from r2v.console import text_table, unfiltered
from r2v.slurm.views.chain_status import ACTIVE, ChainStatus, overall, settled, statuses
from r2v.slurm.views.humanize import clock, size
from r2v.slurm.views.sources import read_files
from r2v.slurm.views.states import JobStatus

ASK_EVERY = 60.0
"""Seconds between queries of Slurm: a busy controller bans users who poll it faster."""
LOOK_EVERY = 5.0
"""Seconds between reads of the files, on a terminal."""


def lines(status: ChainStatus) -> list[str]:
    """Return the lines of `r2v status` about one chain."""
    chain, head = status.chain, f"{status.chain.name}: {status.counts}"
    if chain.created_at:
        commit = f"commit {_commit(status)}, " if chain.commit else ""
        head += f"  (submitted {clock(chain.created_at)}, {commit}code {chain.snapshot or 'live'})"
    rows = [
        (
            job.job + (" (sbatch)" if job.by_hand else ""),
            *(job.state, job.id, str(job.attempt or "")),
            size(job.peak_bytes) if job.peak_bytes else "",
            _with_place(job, status),
        )
        for job in status.jobs
    ]
    table = text_table([("job", "state", "id", "try", "memory", ""), *rows]).splitlines()
    hint = [f"  r2v explain {chain.name}"] if status.exit_code == 1 else []
    return [head, *(f"  {line}" for line in table), *(f"  ! {line}" for line in status.banners), *hint]


def _with_place(job: JobStatus, status: ChainStatus) -> str:
    """Return the state of a job in words, with its position among the stages while it runs."""
    if job.state != "running" or job.by_hand:
        return job.words
    position = list(status.own_jobs).index(job.job) + 1
    return ", ".join(filter(None, (f"stage {position} of {len(status.own_jobs)}", job.words)))


def _commit(status: ChainStatus) -> str:
    return (status.chain.commit or "")[:10] + ("+" if status.chain.dirty else "")


def as_json(status: ChainStatus) -> dict[str, Any]:
    """Return the status as JSON."""
    chain = status.chain
    return {
        "name": chain.name,
        "exit_code": status.exit_code,
        "submitted": chain.created_at,
        "commit": _commit(status),
        "snapshot": chain.snapshot,
        "banners": status.banners,
        "jobs": [asdict(job) for job in status.jobs],
    }


def frames(
    chain_names: Sequence[str],
    root: Path = Path(),
    *,
    every: float = LOOK_EVERY,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, int]]:
    """Yield a screen of `--watch` and the exit code of `r2v status` then, `every` seconds until no job is active."""
    sources, asked_at = settled(chain_names, root), clock()
    while True:
        now = clock()
        if due := now - asked_at >= ASK_EVERY:
            sources, asked_at = settled(chain_names, root), now
        if not due:  # the same answers of Slurm, with the files read anew
            sources = replace(sources, files={name: read_files(name, root) for name in sources.files})
        shown = statuses(sources, root)
        age = f"  Slurm was asked {now - asked_at:.0f} s ago, and is asked again every {ASK_EVERY:.0f} s"
        text = "\n".join(line for status in shown for line in lines(status))
        code = overall(status.exit_code for status in shown)
        yield f"{text}\n{age}", code
        if code != ACTIVE:
            return
        sleep(every)


def watch(chain_names: Sequence[str]) -> int:
    """Print the frames, on a terminal each over the last, elsewhere one a minute; returns the last exit code."""
    # A log file would fill with screens: there, one a minute without control characters.
    terminal, code = sys.stdout.isatty(), 0
    for text, last in frames(chain_names, every=LOOK_EVERY if terminal else ASK_EVERY):
        if terminal:
            print("\033[H\033[J", end="", file=unfiltered(sys.stdout))
        print(text, flush=True)
        code = last
    return code
