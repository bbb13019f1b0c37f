"""Pipeline in this process: make and publish each stage that is not up to date.

    run_here(config)                          # everything that is not up to date
    run_here(config, start="router")          # from one job on

A job is up to date when an artifact of its fingerprint is finished and every file's hash holds; the inputs' content is
part of the fingerprint, so a change reaches exactly the jobs that it matters to. A damaged artifact is logged and made
again. A count of tasks is a limit: a benchmark with fewer plays all of them, which is logged and recorded in the
summary, so that a table over 200 tasks is not taken for one over 100,000.
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
from r2v.llm.providers.spending.quota import paying
from r2v.log import logger
from r2v.memory.release import keep_heap, release_free_memory, reserve_openblas_buffers
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
"""Pause before a stage resumes after a file system failure: time for an NFS client to look up a stale handle again."""


def fewer_than_asked(config: Config, row: Job, root: Path = Path()) -> dict[str, dict[str, int]]:
    """Return, and log, key -> {"asked", "played"} of every count of a job that exceeds the benchmark's tasks.

    Raise, before the job begins, UsageError where a collection has no task to play, and as `Equipped.require_here` does
    where the machine lacks software of the worlds.
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
    limits = {}
    for key, split in row.task_counts:
        limit, there = attrgetter(key)(config), sizes[split]
        plays = key != "verifier.num_tasks" or config.verifier.label_sources[0] not in ("outcome", "td")
        if plays and limit is not None and limit > there:
            logger.info(
                "  fewer tasks than asked, all of them are played: key=%s asked=%d tasks=%d benchmark=%s split=%s",
                *(key, limit, there, config.env.benchmark, split),
            )
            limits[key] = {"asked": limit, "played": there}
    return limits


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """Artifact of a job; `fresh` if this run made it."""

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
    """Run the jobs of the table in this process, each at most once, skipping those that are up to date.

    `start`: the first job, whose inputs are the published ones; `until`: the last one; `data.runs` replaces collecting.
    Raise InputError before anything runs where an input is neither made here nor published.
    """
    rows, given = selection(config, start=start, until=until, without=without)
    if line := untrained_line(config):
        logger.info("  stages skipped: reason=%s", line)
    require_chain(config, rows)  # a later stage refuses its settings before an earlier one is paid for
    require_cap(config, rows, root)
    by_name = {name: published(config, name, root) for name in given}
    results = []
    with recorded_run(root, places_of(config, root).name, [row.name for row in rows]) as run:
        for row in rows:
            inputs = {name: by_name[name] for name in row.inputs}
            done = run_job(config, row, inputs, force=row.name in force, root=root, stop_unready=True)
            if not done.fresh:
                run.change(row.name, state="up to date")
            by_name[row.name] = done.artifact
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
    """Make one job's artifact if it is not up to date, and publish it at `publish_at` or its usual path: from the
    start, so that a killed attempt's checkpoints are there. `quiet`: do not log a job that is up to date;
    `stop_unready`: as `stop` of `require_ready`."""
    stage, places = row.load(), places_of(config, root)
    sections, key = stage.sections(config), fingerprint_of(config, row, inputs, hash_weights=True)
    bases = bases_of(sections, hash_weights=True)
    artifact, damaged = (None, False) if force else _whole(config, row, key, root)
    cpu, began, fresh = cpu_seconds(), time.monotonic(), artifact is None
    resumes = not (force or damaged) and (places.artifacts / f"{row.name}-{key}").is_dir()
    link = (publish_at or places.published(row.place)) if publish and row.place is not None else None
    if artifact is None:
        require_world(sections)
        require_settings(config, row)
        require_ready(config, row, root, stop=stop_unready)
        fewer = fewer_than_asked(config, row, root)
        for item in inputs.values():
            verify(item)
        if force:
            forget_finished(root, f"{row.name}-{key}")
        with (
            _prepared(config, row, key, root, recorded=publish and not quiet) as log_end,
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
            _published_at(link, work.folder),
        ):
            try:
                _run_steadily(partial(stage.run, sections, work))
            except EnvironmentFault:
                if publish:
                    _log_rest(config, row, root, itself=True)
                raise
            work.summary.update({"fewer_than_asked": fewer} if fewer else {})
            work.summary.update(_engine_of(sections))
            log_end(work.summary)
        gc.collect()
        release_free_memory()
        if not (resumes or work.found_played or row.remakes):
            _record_duration(root, row, key, time.monotonic() - began, cpu_seconds() - cpu, publish)
        artifact = made_already(config, row, key, root)
        assert artifact is not None
        if publish:
            _log_rest(config, row, root)
    publish_plays(root, artifact.folder.name, artifact.files)
    seconds = cpu_seconds() - cpu
    if link and not fresh:
        artifacts.publish(link, artifact.folder)
    if fresh:
        logger.info("stage done: stage=%s cpu_s=%.1f", row.name, seconds)
    elif not quiet:
        logger.info("stage up to date: stage=%s", row.name)
    return StageResult(job=row.name, artifact=artifact, fresh=fresh, cpu_seconds=seconds)


def _record_duration(root: Path, row: Job, key: str, seconds: float, used: float, published: bool) -> None:
    """Record a stage's seconds by the clock and of the CPU, by which the next plans are timed."""
    duration = Duration(
        job=row.name,
        fingerprint=key,
        seconds=round(seconds, 3),
        cpu_seconds=round(used, 3),
        device=device_here(),
        cpus=allocated_cpus(),
        published=published,
    )
    record(root, duration)


@contextmanager
def _prepared(
    config: Config, row: Job, key: str, root: Path, *, recorded: bool
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Prepare this process for a stage: its environment, position, payer, trackers and, if `recorded`, the record for
    `r2v status`. Yield the function that gives the trackers the stage's summary."""
    position, name = place_in_chain(config, row), places_of(config, root).name
    logger.info("stage running: stage=%s position=%s", row.name, position)
    with ExitStack() as preparing:
        removed = preparing.enter_context(stage_environment())
        if recorded:
            run = preparing.enter_context(recorded_run(root, name, [row.name]))
            preparing.enter_context(run.stage(row.name))
        preparing.enter_context(in_stage(position))
        preparing.enter_context(paying(name))
        log_end = preparing.enter_context(tracked(_tracked_run(config, row, key, root)))
        keep_heap()
        if removed:
            logger.info("  environment variables kept from the stage: names=%s", removal_text(removed))
        reserve_openblas_buffers()
        yield log_end


def _run_steadily(run: Callable[[], None]) -> None:
    """Run a stage; resume it once where the file system failed under one of its libraries."""
    try:
        return run()
    except OSError as error:
        if failure_of(error)[0] != FileSystemFault.kind:
            raise
        logger.warning("  file system failed, the stage is resumed once: error=%s", error)
    time.sleep(_STALE_SECONDS)
    run()


def _log_rest(config: Config, row: Job, root: Path, *, itself: bool = False) -> None:
    """Log the price of the stages after this one; with `itself`, of this one too."""
    from r2v.pipeline.plan.dry_run import rest_price

    if price := rest_price(config, row, root, itself=itself):
        logger.info("  price of the rest: stages=%s..%s likely_usd=%.2f at_most_usd=%.2f", *price)


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


def _engine_of(sections: Any) -> dict[str, Any]:
    """Return summary figures of the serving engine of a stage's policy; none where this process answers."""
    policy = getattr(sections, "policy", None)
    if policy is None or policy.engine == LOCAL:
        return {}
    from r2v.policy.serving import facts_of_engine

    return facts_of_engine(policy)


def _whole(config: Config, row: Job, key: str, root: Path) -> tuple[Artifact | None, bool]:
    """Return a job's finished artifact if its hashes hold, and True if a damaged one is there; set strays aside."""
    try:
        return made_already(config, row, key, root), False
    except Stray as error:
        name = set_aside(error.path).name
        logger.warning("stray file set aside: stage=%s as=%s error=%s", row.name, name, error)
        return _whole(config, row, key, root)
    except Damaged as error:
        logger.warning("damaged, made again: stage=%s error=%s", row.name, error)
        return None, True


@contextmanager
def _published_at(link: Path | None, folder: Path) -> Iterator[None]:
    """Publish an attempt while it is made; publish the artifact before it again if the attempt cannot succeed."""
    if link is None:
        yield
        return
    before = link.resolve() if link.is_symlink() else folder
    artifacts.publish(link, folder)
    try:
        yield
    except (UsageError, InputError, EmptyResult):
        artifacts.publish(link, before)
        raise
