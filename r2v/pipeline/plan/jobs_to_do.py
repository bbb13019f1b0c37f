"""Plan of the jobs to do, without doing any: submitted by `run_all`, printed by `--dry-run`.

    for step in plan(config, start="router"):
        print(step.job.name, step.state, step.why)

A job is up to date when an artifact of its fingerprint is finished, all its inputs are up to date, and every file has
the hash of its manifest. A job whose files were altered is stale, and so are the jobs after it. A job with an input
that is not made yet is to do. An ablation study remakes the stages that its changes reach; each chain makes only the
artifacts that differ from those of earlier chains, compared by settings and inputs, for their content is not there yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from r2v.config import Config, identity
from r2v.pipeline.graph import as_configured, selection, upstream
from r2v.pipeline.inputs import (
    fingerprint_of,
    made_already,
    published,
    recipe_of,
    require_chain,
    require_policy,
    require_world,
)
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.rows import Job
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.integrity import Artifact
from r2v.storage.model_identity import NOT_HASHED, NotHashed

State = Literal["up to date", "stale", "to do"]


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job of a plan. `needs` are the jobs of the same plan that it waits for."""

    job: Job
    needs: tuple[str, ...]
    state: State
    why: str
    artifact: Artifact | None = None
    """The artifact that is up to date."""
    spoiled: bool = False
    """True if its own files were altered, so that it must be made anew."""
    recipe: str = ""
    """Hash of its settings and of its inputs' recipes, available before any of them is made. Jobs of one recipe make
    one artifact, as far as stages are deterministic. Empty if a base model is not hashed yet."""


def plan(
    config: Config, *, start: str | None = None, without: Sequence[str] = (), root: Path = Path()
) -> list[PlannedJob]:
    """Return the jobs from `start` on in their order, each with its state. Nothing is written.

    Raise UsageError for an unknown job or a configuration that a stage refuses, InputError where an input that no job
    of the plan makes is missing or altered.
    """
    selected, given = selection(config, start=start, without=without)
    for item in selected:
        require_policy(item.load().sections(config))
    artifacts: dict[str, Artifact] = {}
    for name in given:
        artifacts[name] = published(config, name, root)
    waits, steps = waiting(selected), dict[str, PlannedJob]()
    recipes = {name: artifact.data_sha256 for name, artifact in artifacts.items()}
    for item in selected:
        recipes[item.name] = recipe_of(config, item, recipes)
        step = replace(_step(config, item, waits[item.name], artifacts, steps, root), recipe=recipes[item.name])
        if step.artifact is not None:
            artifacts[item.name] = step.artifact
        steps[item.name] = step
    return list(steps.values())


def require_worlds(config: Config, jobs: Sequence[Job]) -> None:
    """Raise UsageError where the world or the teacher of one of these jobs is not available."""
    require_chain(config, jobs)
    for item in jobs:
        require_world(item.load().sections(config))


def waiting(rows: Sequence[Job]) -> dict[str, tuple[str, ...]]:
    """Return job -> the jobs among these that it waits for, without those that another one waits for already."""
    names = {item.name for item in rows}
    reached: dict[str, set[str]] = {}
    waits = {}
    for item in rows:
        direct = [name for name in item.needs if name in names]
        behind = set(direct).union(*(reached[name] for name in direct))
        for name in item.also_reads:
            if name in names and name not in behind:
                direct.append(name)
                behind |= {name} | reached[name]
        waits[item.name], reached[item.name] = tuple(direct), behind
    return waits


def _step(
    config: Config,
    item: Job,
    needs: tuple[str, ...],
    artifacts: Mapping[str, Artifact],
    steps: Mapping[str, PlannedJob],
    root: Path,
) -> PlannedJob:
    for name in item.inputs:
        if name in steps and steps[name].state != "up to date":
            state: State = "stale" if steps[name].state == "stale" else "to do"
            return PlannedJob(job=item, needs=needs, state=state, why=f"{name} is {steps[name].state}")
    try:
        key = fingerprint_of(config, item, {name: artifacts[name] for name in item.inputs})
        artifact = made_already(config, item, key, root)
    except NotHashed:
        return PlannedJob(job=item, needs=needs, state="to do", why=NOT_HASHED)
    except Damaged as error:
        return PlannedJob(job=item, needs=needs, state="stale", why=str(error), spoiled=True)
    if artifact is None:
        return PlannedJob(job=item, needs=needs, state="to do", why="not made with this configuration and these inputs")
    return PlannedJob(job=item, needs=needs, state="up to date", why="inputs unchanged", artifact=artifact)


def touched(before: Config, after: Config) -> set[str]:
    """Return the jobs whose settings differ between two configurations."""
    views = [(item, item.load()) for item in JOBS]
    return {item.name for item, stage in views if identity(stage.sections(before)) != identity(stage.sections(after))}


ChainJob = tuple[str, Config]
"""A job's name and the configuration that it is made with."""


def chain_jobs(name: str, config: Config) -> list[ChainJob]:
    """Return the jobs that a job makes, each once; only itself if it makes no chains."""
    row = job(name)
    chains = row.load().chains(config)
    if not chains:
        return [(name, config)]
    last = row.remakes
    seen = {key for stage, key, _ in _keys(config, last) if stage != last}  # the chain's own jobs are made before it
    makes = []
    for chain in chains:
        for stage, key, under in _keys(chain, last):
            if key not in seen:
                seen.add(key)
                makes.append((stage, under))
    return makes


def _keys(config: Config, last: str) -> Iterator[tuple[str, str, Config]]:
    """Yield (job, key of its artifact, configuration) of a chain up to this job."""
    rows, keys = [as_configured(config, row) for row in JOBS], dict[str, str]()
    names = upstream([last], rows)
    for row in rows:
        if row.name not in names:
            continue
        inputs = [keys[name] for name in row.inputs]
        sections = identity(row.load().sections(config))
        content = json.dumps([row.name, sections, inputs], sort_keys=True)
        keys[row.name] = hashlib.sha256(content.encode()).hexdigest()
        yield row.name, keys[row.name], config
