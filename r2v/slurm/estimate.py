"""The estimate of a chain: its jobs' counts, cost and wall time under the headers of their scripts. It is printed, and
changes no header: only the user, `r2v cluster set`, the site profile and healing after a timeout set a time limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from r2v.config import Config
from r2v.config.execution import allocated_cpus
from r2v.pipeline.helping import is_helpable, unhelped
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.dry_run import PlannedWork, planned_jobs, table
from r2v.pipeline.plan.known import Known, known_here
from r2v.pipeline.plan.wall import Allotted
from r2v.pipeline.rows import Job
from r2v.slurm.site import requests
from r2v.slurm.site.directives import gpu_kind
from r2v.slurm.site.headers import Resources
from r2v.storage.paths import SCRIPTS
from r2v.storage.weights import needs_gpu


def allotted(resources: Resources, *, helped: bool = False) -> Allotted:
    """The resources that a job may use, as its header says: CPUs and GPUs of all its tasks, its time limit, and, where
    its stage may be `helped`, the helpers that play at once."""
    tasks = int(resources.directives.get("ntasks", "1"))
    return Allotted(
        cpus=tasks * int(resources.directives.get("cpus-per-task", "1")),
        gpus=resources.gpus,
        card=gpu_kind(resources.directives),
        seconds=60.0 * resources.time_minutes or None,
        helpers=resources.helpers_at_once if helped else 0,
    )


def planned_by_headers(
    config: Config, jobs: Iterable[Job], known: Known, root: Path = Path(), **given: float | str | None
) -> list[PlannedWork]:
    """The work of each of these jobs under the header of its script, or, where this folder has no scripts, on this
    machine's CPUs and one GPU if the model has work for it. `given` fields of `Allotted` take the header's place,
    GPUs and helpers only where the job may have any. Raises UsageError for a bad header."""
    return planned_jobs(
        config, known, {item.name: _allotted_by_header(config, item, root, given) for item in jobs}, root
    )


def _allotted_by_header(config: Config, item: Job, root: Path, given: Mapping[str, Any]) -> Allotted:
    script, helped = item.command.script, is_helpable(config, item)
    resources = Allotted(cpus=allocated_cpus(), gpus=int(needs_gpu(config.policy)))
    if (root / SCRIPTS / script).exists():
        resources = allotted(requests.of_job(root, script, item.name, config), helped=helped)
    possible = {"gpus": resources.gpus > 0, "helpers": helped}
    return replace(resources, **{name: value for name, value in given.items() if possible.get(name, True)})


def estimates(
    config: Config, resources: Mapping[str, Resources], root: Path = Path(), known: Known | None = None
) -> list[PlannedWork]:
    """The work of each of these jobs under its header."""
    given = {name: allotted(asked, helped=is_helpable(config, job(name))) for name, asked in resources.items()}
    return planned_jobs(config, known or known_here(config, root), given, root)


def estimate_lines(config: Config, resources: Mapping[str, Resources], root: Path = Path()) -> list[str]:
    """The same as a table, with what it rests on; nothing where no job is to be done."""
    if not resources:
        return []
    known = known_here(config, root)
    lines = table(estimates(config, resources, root, known), config, known)
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
