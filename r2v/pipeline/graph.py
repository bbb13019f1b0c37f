"""The dependency graph of the stages: what follows from which job reads which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from r2v.config import PolicyConfig
from r2v.config.evaluation import GROUPS_OF_WEIGHTS, NOT_OF_AN_API
from r2v.errors import UsageError
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.rows import Command, Job

if TYPE_CHECKING:
    from r2v.config import Config


def phases(of: Command) -> tuple[str, ...]:
    """The jobs that a command makes by itself: one, or its phases."""
    return tuple(row.name for row in JOBS if row.command == of)


def made_by(of: Command) -> tuple[str, ...]:
    """The jobs that a command makes when all its phases are asked for: these, and what stands between them."""
    own = phases(of)
    after, before = downstream(own), upstream(own)
    return tuple(row.name for row in JOBS if row.name in own or row.name in after & before)


def as_configured(config: Config, row: Job) -> Job:
    """The row as this configuration needs it: without inputs where it then reads none, and without optional ones that
    are not enabled; and where the router's labels are imputed with the inputs of that, and nothing to play if these are
    others."""
    if not row.uses_inputs(config):
        return replace(row, needs=(), also_reads=())
    absent = {other.name for other in JOBS if other.optional and not other.enabled(config)}
    needs, also_reads, imputed = (
        tuple(name for name in names if name not in absent) for names in (row.needs, row.also_reads, row.imputed or ())
    )
    if config.router.imputed and row.imputed not in (None, row.inputs):
        parts = row.imputed_parts if config.policy.is_api else ""
        return replace(row, needs=imputed, also_reads=(), task_counts=(), parts=parts)
    return replace(row, needs=needs, also_reads=also_reads)


def in_chain(config: Config, row: Job) -> bool:
    """Whether a job is part of this configuration's chain."""
    return row.enabled(config) and not _needs_execution(config, row)


def place_in_chain(config: Config, row: Job) -> str:
    """`stage 9 of 10`: where a job stands among those of this configuration's chain; one that is no part of it stands
    alone."""
    names = [other.name for other in JOBS if in_chain(config, other)]
    return f"stage {names.index(row.name) + 1} of {len(names)}" if row.name in names else "alone"


def possible(config: Config, names: Sequence[str]) -> tuple[str, ...]:
    """Those of these jobs that can be made where the router's labels are imputed; otherwise all. Raises UsageError
    where it is none."""
    executable = tuple(name for name in names if not _needs_execution(config, job(name)))
    if names and not executable:
        allowed = ", ".join(row.name for row in JOBS if row.imputed is not None)
        raise UsageError(
            f"{', '.join(names)}: router.label=imputed is for records of which nothing is executed, and this executes "
            f"or compares what was; allowed with it: {allowed}"
        )
    return executable


def _needs_execution(config: Config, row: Job) -> bool:
    return config.router.imputed and row.imputed is None


def untrained_line(config: Config) -> str | None:
    """What a chain with a small model behind an API leaves out, and why; None where the small model is trained."""
    if not config.policy.is_api:
        return None
    trained = replace(config, policy=PolicyConfig())
    skipped = [row.name for row in JOBS if in_chain(trained, row) and not in_chain(config, row)]
    return (
        f"policy.provider={config.policy.provider}: {config.policy.model_name} is asked as it is; skipped are "
        f"{', '.join(skipped)}; left out, for want of token probabilities and of weights, are the features "
        f"{', '.join(GROUPS_OF_WEIGHTS)} and the methods {', '.join(NOT_OF_AN_API)}"
    )


def downstream(names: Iterable[str]) -> set[str]:
    """The jobs that depend on any of these, those included."""
    reached = set(names)
    for row in JOBS:
        if reached & set(row.inputs):
            reached.add(row.name)
    return reached


def upstream(names: Iterable[str], rows: Sequence[Job] = JOBS) -> set[str]:
    """The jobs that any of these depends on, those included; by the `rows` of a configuration, which may need less."""
    reached = set(names)
    for row in reversed(rows):
        if row.name in reached:
            reached.update(row.inputs)
    return reached


def selection(
    config: Config, *, start: str | None = None, until: str | None = None, without: Sequence[str] = ()
) -> tuple[list[Job], list[str]]:
    """The rows from `start` to `until`, less those left out or not enabled, each as this configuration needs it; and
    the names of the inputs that none of them makes. Raises UsageError for a name that is no job's."""
    left_out = {job(name).name for name in without} | {row.name for row in JOBS if not in_chain(config, row)}
    first = job(start).name if start else JOBS[0].name
    if start and first in left_out:
        raise UsageError(
            f"start from {start}: this configuration leaves it out (--without, data.runs, router.label=imputed, "
            "policy.provider, or hierarchical.enabled=false)"
        )
    names = [row.name for row in JOBS]
    last = job(until).name if until else names[-1]
    chosen = JOBS[names.index(first) : names.index(last) + 1]
    selected = [as_configured(config, row) for row in chosen if row.name not in left_out]
    given = {name for row in selected for name in row.inputs} - {row.name for row in selected}
    return selected, [name for name in names if name in given]
