"""Counts: tasks that a configuration asks for, beside those that its benchmark has.

A count is a limit: where there are fewer tasks all of them are played, and that is said in one line and kept in the
artifact's summary, so that nobody takes a table over 200 tasks for one over 100,000. Counts of a benchmark of one's own
are recorded for the commands that do not import it.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from pathlib import Path

from r2v.config import Config
from r2v.data.split import assign
from r2v.envs.base import Equipped, load_benchmark, more_tasks
from r2v.errors import UsageError
from r2v.log import logger
from r2v.pipeline.plan.recorded import record
from r2v.pipeline.rows import Job


def fewer_than_asked(config: Config, row: Job, root: Path = Path()) -> dict[str, dict[str, int]]:
    """Key -> {"asked", "played"} of every count of a job that is above what the benchmark has; a line of the log each.

    Raises, before anything is begun, UsageError where a job without inputs, a collection, has no task to play, and what
    `Equipped.require_here` does where it plays and the machine lacks what its worlds need.
    """
    if not row.task_counts:
        return {}
    benchmark = load_benchmark(config.env.benchmark, config.env.options)
    tasks = benchmark.tasks()
    record(config, benchmark, root)
    sizes = Counter(assign(tasks, by=config.data.split_by, seed=config.data.split_seed).values())
    if not row.inputs and not sizes["train"]:
        raise UsageError(
            f"env.options: {config.env.benchmark} has {len(tasks)} tasks with these, and none of them is in the train "
            f"split; {more_tasks(benchmark)}"
        )
    if isinstance(benchmark, Equipped) and getattr(row.load().sections(config), "needs_world", True):
        benchmark.require_here()
    found = {}
    for key, split in row.task_counts:
        asked, there = attrgetter(key)(config), sizes[split]
        plays = key != "verifier.num_tasks" or config.verifier.label_sources[0] not in ("outcome", "td")
        if plays and asked is not None and asked > there:
            logger.info(
                "  %s=%d: %s has %d tasks in the %s split; all of them are played",
                key,
                asked,
                config.env.benchmark,
                there,
                split,
            )
            found[key] = {"asked": asked, "played": there}
    return found
