"""Shared chains: the artifacts of several configurations, made by one process or by any number side by side.

    made = make_chains({"base": base, "no_dpo": changed}, root=work.root)     # of each: job -> its artifact

A process takes the first job of a chain that nobody is making, under that artifact's lease. Where another makes it, it
plays that one's blocks if its stage has any (`r2v.pipeline.helping`), and turns to the next chain. An artifact is a
function of its fingerprint, so whoever makes it, and however often who does is killed, the result is the same.
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
"""Seconds until the next look where all that is left is being made by others; doubled from look to look."""

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
    """Every configuration's chain up to these jobs, by the configuration's name; what is there already is found made.
    Returns when all are whole, whoever made them; `quiet` says nothing of what was up to date."""
    wanted = {name: _wanted(config, until) for name, config in configs.items()}
    chains = {name: _given(config, wanted[name], root) for name, config in configs.items()}
    open_still, pause = list(configs), SHORTEST
    while open_still:
        before = sum(map(len, chains.values()))
        for name in list(open_still):
            with record.part(name):
                _go_on(configs[name], chains[name], wanted[name], root, quiet)
            if all(row.name in chains[name] for row in wanted[name]):
                open_still.remove(name)
                logger.info("  %-34s done", name)
        if sum(map(len, chains.values())) > before:
            pause = SHORTEST
        else:
            sleep(pause)
            pause = min(2 * pause, LONGEST)
    return chains


def _wanted(config: c.Config, until: Sequence[str]) -> list[Job]:
    """The jobs that these need, less what the configuration leaves out: collection, where `data.runs` names runs."""
    rows = selection(config)[0]
    names = upstream(until, rows)
    return [row for row in rows if row.name in names]


def _given(config: c.Config, wanted: Sequence[Job], root: Path) -> MadeChain:
    """What those jobs read and none of them makes, as it is published."""
    names = {name for row in wanted for name in row.inputs} - {row.name for row in wanted}
    return {name: published(config, name, root) for name in sorted(names)}


def _go_on(config: c.Config, chain: MadeChain, wanted: Sequence[Job], root: Path, quiet: bool) -> None:
    """Make a chain's jobs in their order, up to one that another process is making; play for that one."""
    for row in wanted:
        if row.name in chain:
            continue
        inputs = {name: chain[name] for name in row.inputs}
        try:
            chain[row.name] = run_job(config, row, inputs, root=root, publish=False, quiet=quiet).artifact
        except LeaseConflict:
            if is_helpable(config, row):
                help_job(config, row, inputs, root=root, patience=0.0)
            return
