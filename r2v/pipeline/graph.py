"""Dependency graph of the stages, derived from the inputs of each job."""

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
    """Return the jobs that a command makes by itself: one, or its phases."""
    return tuple(row.name for row in JOBS if row.command == of)


def made_by(of: Command) -> tuple[str, ...]:
    """Return the jobs that a command makes with all its phases: these, and those between them."""
    own = phases(of)
    after, before = downstream(own), upstream(own)
    return tuple(row.name for row in JOBS if row.name in own or row.name in after & before)


def as_configured(config: Config, row: Job) -> Job:
    """Return the row under this configuration: without unused inputs and optional ones that are not enabled; with
    imputed router labels, with that label's inputs, and nothing to play if these differ."""
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
    """True if a job is part of this configuration's chain."""
    return row.enabled(config) and not _needs_execution(config, row)


def place_in_chain(config: Config, row: Job) -> str:
    """Return the position of a job in this configuration's chain, `stage 9 of 10`; "alone" outside the chain."""
    names = [other.name for other in JOBS if in_chain(config, other)]
    return f"stage {names.index(row.name) + 1} of {len(names)}" if row.name in names else "alone"


def possible(config: Config, names: Sequence[str]) -> tuple[str, ...]:
    """Return these jobs; with imputed router labels, those that execute nothing. Raise UsageError if none is left."""
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
    """Return the line on the parts that a chain skips with a small model behind an API; None if it is trained."""
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
    """Return these jobs and all that depend on them."""
    reached = set(names)
    for row in JOBS:
        if reached & set(row.inputs):
            reached.add(row.name)
    return reached


def upstream(names: Iterable[str], rows: Sequence[Job] = JOBS) -> set[str]:
    """Return these jobs and all that they depend on. `rows`: of a configuration, whose jobs may need less."""
    reached = set(names)
    for row in reversed(rows):
        if row.name in reached:
            reached.update(row.inputs)
    return reached


def selection(
    config: Config, *, start: str | None = None, until: str | None = None, without: Sequence[str] = ()
) -> tuple[list[Job], list[str]]:
    """Return the rows from `start` to `until` without skipped or disabled ones, as this configuration needs them, and
    the names of the inputs that none of them makes. Raise UsageError for an unknown job."""
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
