"""Shared chains: the artifacts of several configurations, made by one process or by any number side by side.

    made = make_chains([base, *changed], root=work.root)     # of each configuration: job -> its artifact

A process takes the first job of a chain that nobody is making, under that artifact's lease. Where another makes it, it
plays that one's blocks if its stage has any (`r2v.pipeline.helping`), and turns to the next chain. An artifact is a
function of its fingerprint, so whoever makes it, and however often who does is killed, the result is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from r2v import config as c
from r2v.errors import LeaseConflict
from r2v.pipeline.graph import upstream
from r2v.pipeline.helping import help_job, is_helpable
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.rows import Job
from r2v.pipeline.run import run_job
from r2v.storage.integrity import Artifact

SHORTEST, LONGEST = 1.0, 30.0
"""Seconds until the next look where all that is left is being made by others; doubled from look to look."""

Chain = dict[str, Artifact]
"""Job -> its artifact."""


def make_chains(
    configs: Sequence[c.Config],
    *,
    root: Path = Path(),
    on_done: Callable[[int], None] = lambda index: None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Chain]:
    """Every configuration's chain up to its evaluation; what is there already is found made. `on_done(index)` is told
    of each chain that is whole. Returns when all are, whoever made them."""
    names = upstream(["evaluate"])
    wanted = [row for row in JOBS if row.name in names]
    chains: list[Chain] = [{} for _ in configs]
    open_still, pause = list(range(len(configs))), SHORTEST
    while open_still:
        before = sum(map(len, chains))
        for index in list(open_still):
            _go_on(configs[index], chains[index], wanted, root)
            if len(chains[index]) == len(wanted):
                open_still.remove(index)
                on_done(index)
        if sum(map(len, chains)) > before:
            pause = SHORTEST
        else:
            sleep(pause)
            pause = min(2 * pause, LONGEST)
    return chains


def _go_on(config: c.Config, chain: Chain, wanted: Sequence[Job], root: Path) -> None:
    """Make a chain's jobs in their order, up to one that another process is making; play for that one."""
    for row in wanted:
        if row.name in chain:
            continue
        inputs = {name: chain[name] for name in row.inputs}
        try:
            chain[row.name] = run_job(config, row, inputs, root=root, publish=False, quiet=True).artifact
        except LeaseConflict:
            if is_helpable(config, row):
                help_job(config, row, inputs, root=root, patience=0.0)
            return
