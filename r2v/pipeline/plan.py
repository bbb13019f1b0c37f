"""Which jobs there are to do, told without doing any: what `run_all` submits and `--dry-run` prints.

    for step in plan(config, start="router"):
        print(step.job.name, step.state, step.why)

A job is up to date when an artifact of its fingerprint is finished, all its inputs are up to date, and every file
still says what its manifest says. One whose content has changed under our feet is stale, and so is all that rests
on it. A job whose input has yet to be made is to be done: whether its content changes, the job itself will see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from r2v.config import Config, identity
from r2v.data.registry import DataRegistry
from r2v.errors import InputError
from r2v.pipeline.graph import selection
from r2v.pipeline.inputs import fingerprint_of, places_of, published, require_world
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.rows import Job
from r2v.storage import artifact as artifacts
from r2v.storage.artifact import ARTIFACT_MANIFEST, Artifact
from r2v.storage.files import content_sha256

State = Literal["up to date", "stale", "to do"]

LARGE = 64 << 20
"""Bytes above which a file is read again only where it is younger than its manifest."""


_RUN_STAGES = {row.stage for row in JOBS if row.place is None}
"""Stages whose artifact only names runs of data, which are hashed too."""


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """One job of a plan. `needs` are the jobs of the same plan that it waits for."""

    job: Job
    needs: tuple[str, ...]
    state: State
    why: str
    artifact: Artifact | None = None
    """What is up to date."""
    spoiled: bool = False
    """Whether its own files have changed, so that it must be made anew although it is there."""


def plan(
    config: Config, *, start: str | None = None, without: Sequence[str] = (), root: Path = Path()
) -> list[PlannedJob]:
    """The jobs from `start` on in their order, each with its state. Nothing is written.

    Raises UsageError for an unknown job or where a stage would not take the configuration, InputError where an
    input that no job of the plan makes is missing or altered.
    """
    wanted, given = selection(config, start=start, without=without)
    for item in wanted:
        item.load().sections(config)
    made: dict[str, Artifact] = {}
    for name in given:
        made[name] = published(config, name, root)
        if (altered := alteration(made[name], root)) is not None:
            raise InputError(f"needs {name}: {altered}; make it again: start from {name}")
    waits, steps = waiting(wanted), dict[str, PlannedJob]()
    for item in wanted:
        step = _step(config, item, waits[item.name], made, steps, root)
        if step.artifact is not None:
            made[item.name] = step.artifact
        steps[item.name] = step
    return list(steps.values())


def require_worlds(config: Config, jobs: Sequence[Job]) -> None:
    """Raises UsageError where one of these jobs would play in a world, or with a teacher, that is not there."""
    for item in jobs:
        require_world(item.load().sections(config))


def waiting(wanted: Sequence[Job]) -> dict[str, tuple[str, ...]]:
    """What each of these jobs waits for among them. A job left out owes its own waiting to those after it only
    where they read something made before it."""
    names = {item.name for item in wanted}
    reached: dict[str, set[str]] = {}
    waits = {}
    for item in wanted:
        direct = [name for name in item.needs if name in names]
        behind = set().union(*(reached[name] for name in direct))
        direct += [name for name in item.also_reads if name in names and name not in behind | set(direct)]
        waits[item.name] = tuple(direct)
        reached[item.name] = set(direct).union(*(reached[name] for name in direct))
    return waits


def _step(
    config: Config,
    item: Job,
    needs: tuple[str, ...],
    made: Mapping[str, Artifact],
    steps: Mapping[str, PlannedJob],
    root: Path,
) -> PlannedJob:
    for name in item.inputs:
        if name in steps and steps[name].state != "up to date":
            state: State = "stale" if steps[name].state == "stale" else "to do"
            return PlannedJob(job=item, needs=needs, state=state, why=f"{name} is {steps[name].state}")
    key = fingerprint_of(config, item, {name: made[name] for name in item.inputs})
    found = artifacts.find(places_of(config, root).artifacts, item.name, key)
    if found is None:
        return PlannedJob(job=item, needs=needs, state="to do", why="not made with this configuration and these inputs")
    if (altered := alteration(found, root)) is not None:
        return PlannedJob(job=item, needs=needs, state="stale", why=altered, spoiled=True)
    return PlannedJob(job=item, needs=needs, state="up to date", why="inputs unchanged", artifact=found)


def alteration(found: Artifact, root: Path = Path()) -> str | None:
    """The first file of an artifact, or of the runs it names, that no longer says what was recorded; None: none.

    Files above LARGE bytes that are older than their manifest are taken on trust.
    """
    manifest = found.folder / ARTIFACT_MANIFEST
    written = manifest.stat().st_mtime if manifest.exists() else 0.0
    for name, recorded in found.files.items():
        path = found.folder / name
        if not path.exists() and name.startswith("run-"):
            continue  # runs that data.runs names: hashed below
        status = path.stat()
        if (status.st_size <= LARGE or status.st_mtime > written) and (told := _differs(path, recorded)):
            return told
    registry = DataRegistry(root / "data")
    for run_id in found.summary.get("run_ids", []) if found.stage in _RUN_STAGES else []:
        run = registry.get(run_id)
        if told := _differs(run.trajectories, str(run.data_sha256)):
            return told
    return None


def _differs(path: Path, recorded: str) -> str | None:
    now = content_sha256(path)
    return None if now == recorded else f"{path} is {now[:12]}, its manifest says {recorded[:12]}"


def touched(before: Config, after: Config) -> set[str]:
    """The jobs that would make something else under the one configuration than under the other, inputs aside."""
    views = [(item, item.load()) for item in JOBS]
    return {item.name for item, stage in views if identity(stage.sections(before)) != identity(stage.sections(after))}
