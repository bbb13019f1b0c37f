"""`r2v status`: the table of a chain with its banners, the same as JSON, and `--watch`.

    r2v status                 # every chain
    r2v status desk_noisy --json
    r2v status --watch         # again and again until nothing is active

While it watches, the jobs' own records, which are files, are read often; Slurm is asked once a minute at most: its last
answer stands until the next one, and a frame says how old it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r2v.console import text_table, unfiltered
from r2v.slurm.views.chain_status import ACTIVE, ChainStatus, overall, settled, statuses
from r2v.slurm.views.humanize import clock, size
from r2v.slurm.views.states import JobStatus

ASK_EVERY = 60.0
"""Seconds between two questions to Slurm."""
LOOK_EVERY = 5.0
"""Seconds between two looks at the files, on a terminal."""


def lines(status: ChainStatus) -> list[str]:
    """The lines of `r2v status` about one chain."""
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
    """The state of a job in words, and, while it runs, which of how many stages it is."""
    if job.state != "running" or job.by_hand:
        return job.words
    place = list(status.own_jobs).index(job.job) + 1
    return ", ".join(filter(None, (f"stage {place} of {len(status.own_jobs)}", job.words)))


def _commit(status: ChainStatus) -> str:
    return (status.chain.commit or "")[:10] + ("+" if status.chain.dirty else "")


def as_json(status: ChainStatus) -> dict[str, Any]:
    """The status as JSON."""
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
    wanted: Sequence[str],
    root: Path = Path(),
    *,
    every: float = LOOK_EVERY,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, int]]:
    """A screen of `--watch` every so many seconds, with the exit code that `r2v status` would end with; the last one
    when no job is active any more."""
    sources, asked_at = settled(wanted, root), clock()
    while True:
        now = clock()
        if due := now - asked_at >= ASK_EVERY:
            sources, asked_at = settled(wanted, root), now
        shown = statuses(sources if due else sources.read_again(root), root)
        age = f"  Slurm was asked {now - asked_at:.0f} s ago, and is asked again every {ASK_EVERY:.0f} s"
        text = "\n".join(line for status in shown for line in lines(status))
        code = overall(status.exit_code for status in shown)
        yield f"{text}\n{age}", code
        if code != ACTIVE:
            return
        sleep(every)


def watch(wanted: Sequence[str]) -> int:
    """Print the frames: on a terminal each in the place of the one before, elsewhere one a minute; returns the exit
    code of the last."""
    terminal, code = sys.stdout.isatty(), 0
    for text, last in frames(wanted, every=LOOK_EVERY if terminal else ASK_EVERY):
        if terminal:
            print("\033[H\033[J", end="", file=unfiltered(sys.stdout))
        print(text, flush=True)
        code = last
    return code
