"""The estimate of a chain: what its jobs play, ask and cost, and their wall time under the headers of their scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from r2v.config import Config
from r2v.pipeline.helping import is_helpable, unhelped
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.dry_run import PlannedWork, planned_work, table
from r2v.pipeline.plan.known import known_here
from r2v.pipeline.plan.wall import Allotted
from r2v.slurm.directives import gpu_kind
from r2v.slurm.headers import Resources


def allotted(resources: Resources, *, helped: bool = False) -> Allotted:
    """What a job may use, as its header says: CPUs and GPUs of all its tasks, its time limit, and, where its stage may
    be `helped`, the helpers that play at once."""
    tasks = int(resources.directives.get("ntasks", "1"))
    return Allotted(
        cpus=tasks * int(resources.directives.get("cpus-per-task", "1")),
        gpus=resources.gpus,
        card=gpu_kind(resources.directives),
        seconds=60.0 * resources.time_minutes or None,
        helpers=resources.helpers_at_once if helped else 0,
    )


def estimates(config: Config, resources: Mapping[str, Resources], root: Path = Path()) -> list[PlannedWork]:
    """The work of each of these jobs under its header."""
    known = known_here(config, root)
    return [
        planned_work(name, config, known, allotted(asked, helped=is_helpable(config, job(name))), root)
        for name, asked in resources.items()
    ]


def estimate_lines(config: Config, resources: Mapping[str, Resources], root: Path = Path()) -> list[str]:
    """The same as a table, with what it rests on; nothing where no job is to be done."""
    if not resources:
        return []
    lines = table(estimates(config, resources, root), config, known_here(config, root))
    return [*lines, *_refused_helpers(config, resources), ""]


def _refused_helpers(config: Config, resources: Mapping[str, Resources]) -> list[str]:
    """A line for each job whose header names helpers that this configuration takes none of."""
    named = {name: asked.helpers for name, asked in resources.items() if asked.helpers and job(name).command.helped}
    reasons = {name: unhelped(config, job(name)) for name in named}
    return [
        f"helpers of {name}: none of the {named[name]} that its header names; {why}; teacher.mode=concurrent takes them"
        for name, why in reasons.items()
        if why is not None
    ]
