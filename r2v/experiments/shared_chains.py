"""Shared chains: the artifacts of several configurations, made by any number of processes at once.

A process makes the first job of a chain whose lease is free. If another process makes it, this one plays blocks of
that job if its stage has any (`r2v.pipeline.helping`), and continues with the next chain. An artifact is a function of
its fingerprint, so the result does not depend on the process that makes it, nor on kills.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from r2v import config as c
from r2v.errors import LeaseConflict
from r2v.log import logger
from r2v.pipeline.graph import selection, upstream
from r2v.pipeline.helping import help_job, is_helpable
from r2v.pipeline.inputs import published
from r2v.pipeline.rows import Job
from r2v.pipeline.run import run_job
from r2v.storage import record
from r2v.storage.integrity import Artifact

SHORTEST, LONGEST = 1.0, 30.0
"""Seconds between polls while other processes make all remaining jobs; doubled from poll to poll."""

MadeChain = dict[str, Artifact]
"""Job -> its artifact."""


def make_chains(
    configs: Mapping[str, c.Config],
    *,
    until: Sequence[str] = ("evaluate",),
    root: Path = Path(),
    quiet: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, MadeChain]:
    """Make every configuration's chain up to the jobs `until`; return the chains by the configuration's name.

    Existing artifacts are reused. Return once all chains are complete, made by this process or others; `quiet`: do not
    log jobs that are up to date.
    """
    jobs = {name: _jobs(config, until) for name, config in configs.items()}
    chains = {name: _given(config, jobs[name], root) for name, config in configs.items()}
    unfinished, pause = list(configs), SHORTEST
    while unfinished:
        before = sum(map(len, chains.values()))
        for name in list(unfinished):
            with record.part(name):
                _go_on(configs[name], chains[name], jobs[name], root, quiet)
            if all(row.name in chains[name] for row in jobs[name]):
                unfinished.remove(name)
                logger.info("  chain done: name=%s", name)
        if sum(map(len, chains.values())) > before:
            pause = SHORTEST
        else:
            sleep(pause)
            pause = min(2 * pause, LONGEST)
    return chains


def _jobs(config: c.Config, until: Sequence[str]) -> list[Job]:
    """Return the jobs up to `until` without those that the configuration skips, such as collection with `data.runs`."""
    rows = selection(config)[0]
    names = upstream(until, rows)
    return [row for row in rows if row.name in names]


def _given(config: c.Config, rows: Sequence[Job], root: Path) -> MadeChain:
    """Return the published artifacts that these jobs read and none of them makes."""
    names = {name for row in rows for name in row.inputs} - {row.name for row in rows}
    return {name: published(config, name, root) for name in sorted(names)}


def _go_on(config: c.Config, chain: MadeChain, rows: Sequence[Job], root: Path, quiet: bool) -> None:
    """Make a chain's jobs in order, up to one that another process is making; help that process play."""
    for row in rows:
        if row.name in chain:
            continue
        inputs = {name: chain[name] for name in row.inputs}
        try:
            chain[row.name] = run_job(config, row, inputs, root=root, publish=False, quiet=quiet).artifact
        except LeaseConflict:
            if is_helpable(config, row):
                help_job(config, row, inputs, root=root, patience=0.0)
            return
