"""The pipeline in this process: each stage is made, or found made, and published.

    run_here(config)                          # everything that is not up to date
    run_here(config, start="router")          # from one job on

A job is up to date when an artifact of its fingerprint is finished and every file of it, hashed, is what was made; its
inputs' content is part of the fingerprint, so a change travels exactly as far as it matters. What was damaged is named
and made again. A count of tasks is a limit: where there are fewer all of them are played, which is said in one line and
kept in the artifact's summary, so that nobody takes a table over 200 tasks for one over 100,000.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from r2v.config import Config, to_yaml
from r2v.config.engines import LOCAL
from r2v.config.execution import allocated_cpus
from r2v.data.split import assign
from r2v.environment import removal_text, stage_environment
from r2v.envs.base import Equipped, load_benchmark, more_tasks
from r2v.errors import EmptyResult, EnvironmentFault, FileSystemFault, InputError, UsageError, failure_of
from r2v.llm.providers.spending.payer import paying
from r2v.log import logger
from r2v.memory.release import release_free_memory
from r2v.pipeline.graph import place_in_chain, selection, untrained_line
from r2v.pipeline.inputs import (
    bases_of,
    fingerprint_of,
    flat,
    made_already,
    places_of,
    published,
    require_chain,
    require_settings,
    require_world,
)
from r2v.pipeline.local_run import cpu_seconds, recorded_run
from r2v.pipeline.plan import recorded
from r2v.pipeline.ready import require_cap, require_ready
from r2v.pipeline.rows import Job
from r2v.progress import in_stage
from r2v.rollout.episode_cache import forget_finished, publish_plays
from r2v.storage import artifact as artifacts
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.durations import Duration, device_here, record
from r2v.storage.integrity import Artifact, Stray, set_aside, verify
from r2v.storage.paths import LOGS
from r2v.trackers import TRACKER_GROUP, TRACKER_PROJECT, TrackedRun, tracked

_STALE_SECONDS = 5.0
"""Pause before a stage goes on whose file system failed: an NFS client has looked up a stale handle again by then."""


def fewer_than_asked(config: Config, row: Job, root: Path = Path()) -> dict[str, dict[str, int]]:
    """Key -> {"asked", "played"} of every count of a job that is above what the benchmark has; a line of the log each.

    Raises, before anything is begun, UsageError where a job without inputs, a collection, has no task to play, and what
    `Equipped.require_here` does where it plays and the machine lacks what its worlds need.
    """
    if not row.task_counts:
        return {}
    benchmark = load_benchmark(config.env.benchmark, config.env.options)
    tasks = benchmark.tasks()
    recorded.record(config, benchmark, root)
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


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """What became of one job: its artifact, and whether it had to be made."""

    job: str
    artifact: Artifact
    fresh: bool
    cpu_seconds: float = 0.0


def run_here(
    config: Config,
    *,
    start: str | None = None,
    until: str | None = None,
    without: Sequence[str] = (),
    force: Sequence[str] = (),
    root: Path = Path(),
) -> list[StageResult]:
    """Run the jobs of the table in this process, each at most once, skipping what is up to date.

    `start` takes the inputs of that job and later ones from their published places instead of making them, `until` is
    the last job that is made, and `data.runs` takes the named runs instead of collecting.
    Raises InputError before anything runs where an input is neither made here nor published.
    """
    wanted, given = selection(config, start=start, until=until, without=without)
    if line := untrained_line(config):
        logger.info("  %s", line)
    require_chain(config, wanted)  # what a later stage would refuse, before an earlier one is paid for
    require_cap(config, wanted, root)
    made = {name: published(config, name, root) for name in given}
    results = []
    with recorded_run(root, places_of(config, root).name, [row.name for row in wanted]) as run:
        for row in wanted:
            inputs = {name: made[name] for name in row.inputs}
            done = run_job(config, row, inputs, force=row.name in force, root=root, stop_unready=True)
            if not done.fresh:
                run.change(row.name, state="up to date")
            made[row.name] = done.artifact
            results.append(done)
    return results


def run_job(
    config: Config,
    row: Job,
    inputs: Mapping[str, Artifact],
    *,
    force: bool = False,
    root: Path = Path(),
    publish_at: Path | None = None,
    publish: bool = True,
    quiet: bool = False,
    stop_unready: bool = False,
) -> StageResult:
    """Make one job's artifact, or find it made, and publish it (at its usual place unless told otherwise): from
    its first moment on, so that the checkpoints of a killed attempt are found there. `quiet` says nothing of what
    was up to date; `stop_unready` as of `require_ready`."""
    stage, places = row.load(), places_of(config, root)
    sections, key = stage.sections(config), fingerprint_of(config, row, inputs, hash_weights=True)
    bases = bases_of(sections, hash_weights=True)
    found, damaged = (None, False) if force else _whole(config, row, key, root)
    cpu, began, fresh = cpu_seconds(), time.monotonic(), found is None
    resumes = not (force or damaged) and (places.artifacts / f"{row.name}-{key}").is_dir()
    place = (publish_at or places.published(row.place)) if publish and row.place is not None else None
    if found is None:
        require_world(sections)
        require_settings(config, row)
        require_ready(config, row, root, stop=stop_unready)
        fewer = fewer_than_asked(config, row, root)
        for item in inputs.values():
            verify(item)
        if force:
            forget_finished(root, f"{row.name}-{key}")
        where = place_in_chain(config, row)
        logger.info("%-16s running, %s", row.name, where)
        with (
            stage_environment() as removed,
            _recorded(root, places.name, row, publish and not quiet),
            in_stage(where),
            paying(places.name),
            tracked(_tracked_run(config, row, key, root)) as log_end,
            artifacts.build(
                places.artifacts,
                row.name,
                key,
                row.stage,
                to_yaml(config),
                inputs,
                root,
                bases=bases,
                again=force,
                mend=damaged,
            ) as work,
            _published_at(place, work.folder),
        ):
            if removed:
                logger.info("  not given to the stage: %s", removal_text(removed))
            try:
                _run_steadily(partial(stage.run, sections, work))
            except EnvironmentFault:
                if publish:
                    _tell_rest(config, row, root, itself=True)
                raise
            work.summary.update({"fewer_than_asked": fewer} if fewer else {})
            work.summary.update(_engine_of(sections))
            log_end(work.summary)
        gc.collect()
        release_free_memory()
        if not (resumes or work.found_played or row.remakes):
            wall, used = time.monotonic() - began, cpu_seconds() - cpu
            record(root, _duration(row, key, wall, used, publish))
        found = made_already(config, row, key, root)
        assert found is not None
        if publish:
            _tell_rest(config, row, root)
    publish_plays(root, found.folder.name, found.files)
    seconds = cpu_seconds() - cpu
    if place and not fresh:
        artifacts.publish(place, found.folder)
    if fresh or not quiet:
        logger.info("%-16s %s", row.name, f"done, {seconds:.1f} CPU-s" if fresh else "up to date")
    return StageResult(job=row.name, artifact=found, fresh=fresh, cpu_seconds=seconds)


def _run_steadily(run: Callable[[], None]) -> None:
    """Run a stage, once more from what it has written where the file system failed under one of its libraries."""
    try:
        return run()
    except OSError as error:
        if failure_of(error)[0] != FileSystemFault.kind:
            raise
        logger.warning("  %s; going on from what is written, once", error)
    time.sleep(_STALE_SECONDS)
    run()


@contextmanager
def _recorded(root: Path, name: str, row: Job, wanted: bool) -> Iterator[None]:
    """Record the making of a stage for `r2v status`, unless it is a part of something larger."""
    with ExitStack() as recording:
        if wanted:
            run = recording.enter_context(recorded_run(root, name, [row.name]))
            recording.enter_context(run.stage(row.name))
        yield


def _tell_rest(config: Config, row: Job, root: Path, *, itself: bool = False) -> None:
    """Log the price of the stages after this one, or with `itself` of this one too."""
    from r2v.pipeline.plan.dry_run import rest_line

    if line := rest_line(config, row, root, itself=itself):
        logger.info("  %s", line)


def _tracked_run(config: Config, row: Job, key: str, root: Path) -> TrackedRun:
    """Return the run of a job in the trackers."""
    name = places_of(config, root).name
    trackers = config.logging.trackers
    return TrackedRun(
        trackers=None if trackers is None else tuple(trackers),
        project=os.environ.get("WANDB_PROJECT", TRACKER_PROJECT),
        id=f"{name}-{row.name}-{key}"[-100:].replace(":", "."),
        job=row.name,
        group=os.environ.get(TRACKER_GROUP, name),
        config=flat(asdict(config)),
        folder=root / LOGS,
    )


def _duration(row: Job, key: str, seconds: float, cpu_seconds: float, published: bool) -> Duration:
    """What making a job's artifact took on this machine."""
    return Duration(
        job=row.name,
        fingerprint=key,
        seconds=round(seconds, 3),
        cpu_seconds=round(cpu_seconds, 3),
        device=device_here(),
        cpus=allocated_cpus(),
        published=published,
    )


def _engine_of(sections: Any) -> dict[str, Any]:
    """What a stage that plays with the policy says of the serving engine that answered; nothing for this process."""
    policy = getattr(sections, "policy", None)
    if policy is None or policy.engine == LOCAL:
        return {}
    from r2v.policy.serving import facts_of_engine

    return facts_of_engine(policy)


def _whole(config: Config, row: Job, key: str, root: Path) -> tuple[Artifact | None, bool]:
    """The finished artifact of a job, if it is what was made; and whether one is there that is not. A file that nobody
    made is set aside, and what is left is judged again."""
    try:
        return made_already(config, row, key, root), False
    except Stray as error:
        logger.warning("%-16s %s; it is set aside as %s", row.name, error, set_aside(error.path).name)
        return _whole(config, row, key, root)
    except Damaged as error:
        logger.warning("%-16s %s; it is made again", row.name, error)
        return None, True


@contextmanager
def _published_at(place: Path | None, folder: Path) -> Iterator[None]:
    """Publish an attempt while it is made. What was there before comes back where the attempt cannot succeed."""
    if place is None:
        yield
        return
    before = place.resolve() if place.is_symlink() else folder
    artifacts.publish(place, folder)
    try:
        yield
    except (UsageError, InputError, EmptyResult):
        artifacts.publish(place, before)
        raise
