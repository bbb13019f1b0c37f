"""The estimate of a chain: its jobs' counts, cost and wall time under the headers of their scripts. It is printed and
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
from r2v.pipeline.plan.benchmark_facts import BenchmarkFacts, facts_here
from r2v.pipeline.plan.dry_run import PlannedWork, planned_jobs, table
from r2v.pipeline.plan.wall import Allotted
from r2v.pipeline.rows import Job
from r2v.slurm.site import requests
from r2v.slurm.site.directives import gpu_kind
from r2v.slurm.site.headers import Resources
from r2v.storage.paths import SCRIPTS
from r2v.storage.weights import needs_gpu


def allotted(resources: Resources, *, helped: bool = False) -> Allotted:
    """Return the resources that a header grants: CPUs and GPUs of all tasks, the time limit in seconds, and, if the
    stage may be `helped`, the number of concurrent helpers."""
    tasks = int(resources.directives.get("ntasks", "1"))
    return Allotted(
        cpus=tasks * int(resources.directives.get("cpus-per-task", "1")),
        gpus=resources.gpus,
        card=gpu_kind(resources.directives),
        seconds=60.0 * resources.time_minutes or None,
        helpers=resources.helpers_at_once if helped else 0,
    )


def planned_by_headers(
    config: Config, jobs: Iterable[Job], facts: BenchmarkFacts, root: Path = Path(), **given: float | str | None
) -> list[PlannedWork]:
    """Return the work of each job under its script's header, or, without scripts in this folder, on this machine's
    CPUs and one GPU if the model needs it. `given` fields of `Allotted` override the header; GPUs and helpers only
    for jobs that can use them. Raise UsageError for a bad header."""
    return planned_jobs(
        config, facts, {item.name: _allotted_by_header(config, item, root, given) for item in jobs}, root
    )


def _allotted_by_header(config: Config, item: Job, root: Path, given: Mapping[str, Any]) -> Allotted:
    script, helped = item.command.script, is_helpable(config, item)
    resources = Allotted(cpus=allocated_cpus(), gpus=int(needs_gpu(config.policy)))
    if (root / SCRIPTS / script).exists():
        resources = allotted(requests.of_job(root, script, item.name, config), helped=helped)
    # --gpus and --helpers of a what-if apply only to jobs that can use them.
    possible = {"gpus": resources.gpus > 0, "helpers": helped}
    return replace(resources, **{name: value for name, value in given.items() if possible.get(name, True)})


def estimates(
    config: Config, resources: Mapping[str, Resources], root: Path = Path(), facts: BenchmarkFacts | None = None
) -> list[PlannedWork]:
    """Return the work of each job under its header."""
    given = {name: allotted(request, helped=is_helpable(config, job(name))) for name, request in resources.items()}
    return planned_jobs(config, facts or facts_here(config, root), given, root)


def estimate_lines(config: Config, resources: Mapping[str, Resources], root: Path = Path()) -> list[str]:
    """Return the estimates as a table with their sources; [] if no job is due."""
    if not resources:
        return []
    facts = facts_here(config, root)
    lines = table(estimates(config, resources, root, facts), config, facts)
    return [*lines, *_refused_helpers(config, resources), ""]


def _refused_helpers(config: Config, resources: Mapping[str, Resources]) -> list[str]:
    """Return a line for each job whose header requests helpers that this configuration cannot use."""
    named = {name: wish.helpers for name, wish in resources.items() if wish.helpers and job(name).command.helped}
    reasons = {name: unhelped(config, job(name)) for name in named}
    return [
        f"helpers of {name}: none of the {named[name]} that its header names; {why}; teacher.mode=concurrent takes them"
        for name, why in reasons.items()
        if why is not None
    ]
