"""Stage 1, collect: a data-collection run, in which the teacher plays the training tasks.

    r2v collect --config configs/desk/clean.yaml --num-episodes 500 --seeds 1 2 3

The run under data/runs/<run_id>/ is the data; the artifact only names it. An interrupted run resumes: a finished
(task, seed) is never paid for again, and a provider's replies to an unfinished one are in the journal under provider/.
Helpers play blocks of its tasks; the run's single writer copies their episodes.

A request that the provider refuses for good (a content filter, a context too long) ends its episode as a failure of
the model (`no_answer`), recorded and counted. An answer that is lost for good is an environment fault.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.config import identity
from r2v.data.registry import DataRegistry
from r2v.data.run import RunHandle, verify_run
from r2v.data.split import assign
from r2v.data.store import sort_episodes
from r2v.data.tools import Tools, tools_sha256
from r2v.errors import EmptyResult, EnvironmentFault, InputError, UsageError
from r2v.event_loop import run_async
from r2v.log import logger
from r2v.stages import Stage
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, Damaged
from r2v.storage.files import write_text, writing

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.data.manifest import RunManifest
    from r2v.envs.base import Benchmark
    from r2v.rollout.session import EpisodeSpec

PROVIDER = "provider"
"""Folder of a run with the journal of provider requests and their cost."""
_PATIENCE = 30
"""Seconds that a helper waits for the run to begin."""


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """Settings of a collection."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    max_steps: int
    num_episodes: int | None
    seeds: list[int]
    split_seed: int
    split_by: str
    price: c.Price
    rollout: c.RolloutConfig
    run: c.RunConfig

    @classmethod
    def of(cls, config: c.Config) -> CollectSettings:
        """Return the part of a configuration that a collection reads."""
        return c.sections_of(
            cls,
            config,
            max_steps=config.inference.max_steps,
            num_episodes=config.data.num_episodes,
            seeds=config.data.seeds,
            split_seed=config.data.split_seed,
            split_by=config.data.split_by,
            price=config.cost.llm_price,
        )

    @property
    def in_one_block(self) -> bool:
        """True if provider batches are used: they hold the requests of all episodes, so helpers take none."""
        return self.teacher.provider != "scripted" and self.teacher.mode != "concurrent"


def run(cfg: CollectSettings, work: Work) -> None:
    """Play the missing episodes, close the run, and name it in runs.jsonl. Raise EnvironmentFault where requests are
    unanswered or every episode failed by a fault, EmptyResult where none succeeded."""
    registry = DataRegistry(work.root / "data")
    with _begin(cfg, work, registry) as handle:
        _announce(handle)
        specs = _specs(cfg, handle.run_id)
        open_still = _play_missing(cfg, specs, handle, work)
        if len(open_still) == len(specs):  # no episode was answered: the run stays open
            raise _unanswered(cfg, handle.run_id, open_still, specs)
        sort_episodes(handle.store.path)
        manifest = handle.finish(expected=len(specs))
        _announce(handle)
    if open_still:
        raise _unanswered(cfg, manifest.run_id, open_still, specs)
    if manifest.status != "done":
        raise InputError(
            f"run {manifest.run_id} holds {manifest.n_episodes} episodes, {len(specs)} were asked for; "
            f"start afresh without --run-id, or finish it with its own configuration"
        )
    if manifest.all_faults:
        fault = next(e.env_fault for e in handle.store.iter_episodes() if e.env_fault is not None)
        raise EnvironmentFault(
            f"run {manifest.run_id}: the world broke in all {manifest.n_episodes} episodes, first: {fault}; "
            "mend it (`r2v check-env` tells what is wrong with a benchmark) and run the same command again, which "
            "begins a new run"
        )
    if not manifest.n_success and (reason := _no_answer_at_all(handle)):
        raise EnvironmentFault(
            f"run {manifest.run_id}: {cfg.teacher.model_name} gave no answer in any of {manifest.n_episodes} episodes, "
            f"first: {reason}; mend that and run the same command again, which begins a new run"
        )
    if not manifest.n_success:
        raise EmptyResult(
            f"run {manifest.run_id}: none of {manifest.n_episodes} episodes succeeded; nothing to learn "
            "from. Look at the episodes, then at teacher.* and inference.max_steps"
        )
    line: dict[str, Any] = {
        "run_id": manifest.run_id,
        "n_episodes": manifest.n_episodes,
        "data_sha256": manifest.data_sha256,
    }
    if manifest.tools is not None:
        line["tools_sha256"] = tools_sha256(manifest.tools)
    write_text(work.folder / "runs.jsonl", json.dumps(line) + "\n")
    work.summary.update(
        run_ids=[manifest.run_id],
        n_episodes=manifest.n_episodes,
        n_success=manifest.n_success,
        success_rate=manifest.success_rate,
        total_cost_usd=round(manifest.total_cost_usd, 6),
    )
    outcomes = {**manifest.outcomes, "not measured": manifest.n_env_faults}
    logger.info(
        "  run collected: run=%s episodes=%d success=%.1f%% list_price=$%.2f billed=%s other_outcomes=%s",
        *(manifest.run_id, manifest.n_episodes, 100 * manifest.success_rate, manifest.total_cost_usd),
        "no" if cfg.teacher.provider == "scripted" else "yes",
        ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count) or "none",
    )


def play(cfg: CollectSettings, work: Work) -> None:
    """Play, as a helper, the episodes that neither the run in progress nor another helper has."""
    if (run := _under_way(cfg, work)) is not None:
        _play_blocks(cfg, _specs(cfg, run.run_id), run, work)


def cancel(config: c.Config, root: Path = Path()) -> str:
    """Cancel the provider batches of the run `run.id` and keep their replies; return a line on these. Raise UsageError
    if no run is named or its teacher is scripted, InputError for an unknown run."""
    from r2v.rollout.model_factory import Payer, provider_remote

    if not config.run.id or config.teacher.provider == "scripted":
        raise UsageError(
            "collect --cancel: name the run with --run-id, under a configuration whose teacher.provider "
            "is openai or anthropic"
        )
    folder = Path(DataRegistry(root / "data").get(config.run.id).output_dir) / PROVIDER
    cancelled = run_async(provider_remote(config.teacher, Payer(folder=folder, root=root), only=True).cancel())
    return f"{config.run.id}: cancelled; {json.dumps(cancelled)}"


def _begin(cfg: CollectSettings, work: Work, registry: DataRegistry) -> RunHandle:
    """Begin a run, or resume one of this configuration that is interrupted, damaged, or done without an artifact."""
    from r2v.envs.base import load_benchmark
    from r2v.rollout.model_factory import teacher_name

    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options)
    name = teacher_name(cfg.teacher, benchmark)
    runs = registry.query(benchmark=cfg.env.benchmark)
    same = [m for m in runs if m.fingerprint == work.fingerprint and not (m.status == "done" and m.all_faults)]
    unfinished = [m for m in same if m.status in ("interrupted", "partial", "failed") or _to_mend(cfg, m)]
    if not work.anew:  # its artifact was damaged, lost or never written: the paid episodes are there
        unfinished += [m for m in same if m.status == "done" and m not in unfinished]
    run_id = cfg.run.id or (unfinished[-1].run_id if unfinished else None)
    base = work.root / cfg.run.base if cfg.run.base else None
    return registry.begin_run(
        benchmark=cfg.env.benchmark,
        provider=cfg.teacher.provider,
        model_name=name,
        fingerprint=work.fingerprint,
        config=identity(cfg),
        base=base,
        tags=cfg.run.tags,
        notes=cfg.run.notes,
        tools=_tools(benchmark),
        run_id=run_id,
    )


def _tools(benchmark: Benchmark) -> Tools | None:
    """Return the tools of a fresh world; None, logged, if it fails to list them."""
    from r2v.envs.base import tools_of
    from r2v.envs.guard import require_tools
    from r2v.policy.training_tools import recorded

    try:
        return recorded(require_tools(tools_of(benchmark), benchmark))
    except UsageError as error:
        logger.warning("  run recorded without tools: error=%s", error)
        return None


def _under_way(cfg: CollectSettings, work: Work) -> RunManifest | None:
    """Return the run that the attempt collects; None if none begins within `_PATIENCE` seconds."""
    for _ in range(_PATIENCE):
        runs = DataRegistry(work.root / "data").query(benchmark=cfg.env.benchmark)
        own = [m for m in runs if m.fingerprint == work.fingerprint and cfg.run.id in (None, m.run_id)]
        unfinished = [m for m in own if m.status != "done"]
        if unfinished or (work.folder / ARTIFACT_MANIFEST).exists():
            return unfinished[-1] if unfinished else None
        time.sleep(1.0)
    return None


def _to_mend(cfg: CollectSettings, run: RunManifest) -> bool:
    """True if a finished run's trajectories are damaged and can be played again. Raise InputError if the journal of the
    provider's replies is gone too, so that they would be paid twice."""
    try:
        if run.status == "done":
            verify_run(run)
        return False
    except Damaged as error:
        if cfg.teacher.provider != "scripted" and not (run.output_dir / PROVIDER).is_dir():
            raise InputError(
                f"{error}, and its journal {run.output_dir / PROVIDER} is gone: put either back, or move "
                f"{run.output_dir} away to collect (and pay) anew"
            ) from None
        return True


def _announce(handle: RunHandle) -> None:
    """Log the run's id and folder, in the box that scripts of collections search for."""
    box = f"{'=' * 60}\n  Run ID : {handle.run_id}\n  Output : {handle.output_dir}\n{'=' * 60}"
    logger.info(box)


def _no_answer_at_all(handle: RunHandle) -> str:
    """Return the reason that the first episode of a run got no answer, if none got one; else ""."""
    reasons = [episode.outcome_reason for episode in handle.store.iter_episodes()]
    return str(reasons[0]) if reasons and all(reasons) else ""


def _unanswered(cfg: CollectSettings, run_id: str, open_still: list[str], specs: list[EpisodeSpec]) -> EnvironmentFault:
    """Return the error of a run in which some episodes got no answer."""
    return EnvironmentFault(
        f"run {run_id}: {cfg.teacher.provider} gave no answer for {len(open_still)} of "
        f"{len(specs)} episodes ({open_still[0]}); the rest is kept: run the same command again"
    )


def _specs(cfg: CollectSettings, run_id: str) -> list[EpisodeSpec]:
    from r2v.envs.base import load_benchmark
    from r2v.rollout.model_factory import teacher_name

    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options)
    name, provider = teacher_name(cfg.teacher, benchmark), cfg.teacher.provider
    record = {"run_id": run_id, "teacher_provider": provider, "teacher_model": name}
    return collection_specs(cfg, benchmark, record)


def collection_specs(cfg: CollectSettings, benchmark: Benchmark, record: dict[str, Any]) -> list[EpisodeSpec]:
    """Return the episodes of a collection: each training task under each seed. `record` goes into their metadata."""
    from r2v.rollout.session import EpisodeSpec

    splits = assign(benchmark.tasks(), by=cfg.split_by, seed=cfg.split_seed)  # type: ignore[arg-type]
    tasks = [task for task in benchmark.tasks() if splits[task.task_id] == "train"][: cfg.num_episodes]
    return [EpisodeSpec(task=task, seed=seed, split="train", run=record) for seed in cfg.seeds for task in tasks]


def _play_missing(cfg: CollectSettings, specs: list[EpisodeSpec], handle: RunHandle, work: Work) -> list[str]:
    """Play and store the run's missing episodes; return the reason of each that got no answer."""
    done = handle.store.done_keys()
    if stored := sum((spec.task.task_id, spec.seed, None) in done for spec in specs):
        logger.info("  collection resumed: stored=%d/%d episodes", stored, len(specs))
    begun = time.time()
    log = handle.output_dir / "collection_log.jsonl"

    def write(episode: Episode) -> None:
        handle.store.append(episode)
        figures = {
            "episode_id": episode.episode_id,
            "success": episode.success,
            "n_steps": len(episode.steps),
            "total_cost": episode.total_cost,
            "seconds_since_start": round(time.time() - begun, 3),
        }
        with writing(log), log.open("a") as file:
            file.write(json.dumps(figures) + "\n")

    return _play_blocks(cfg, specs, handle.manifest, work, write)


def _play_blocks(
    cfg: CollectSettings,
    specs: list[EpisodeSpec],
    run: RunManifest,
    work: Work,
    write: Callable[[Episode], None] | None = None,
) -> list[str]:
    """Play the missing episodes block by block and `write` them into the run (None: this is a helper, whose plays the
    writing process copies); return the reason of each that got no answer."""
    from r2v.data.episode import Episode
    from r2v.envs.base import load_benchmark
    from r2v.llm.providers.remote import Unanswered
    from r2v.rollout.actors import GreedyActor
    from r2v.rollout.episode_log import play_into_log
    from r2v.rollout.model_factory import Payer, engine, priced_teacher
    from r2v.rollout.session import RolloutWorld
    from r2v.rollout.sites import SitePool
    from r2v.rollout.work_queue import Cell, block_size

    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options)
    waves = engine(cfg.rollout, benchmark, cfg.teacher)
    sites = SitePool.of(cfg.rollout, benchmark, work.root)
    world = RolloutWorld(benchmark, c.PerturbationsConfig(), c.InferenceConfig(max_steps=cfg.max_steps), sites)
    payer = Payer(folder=run.output_dir / PROVIDER, root=work.root)
    teacher = priced_teacher(cfg.teacher, c.CostConfig(llm=cfg.price.of_tokens), benchmark, waves, payer)
    actor, open_still = GreedyActor(teacher, "teacher"), list[str]()

    async def attempt(spec: EpisodeSpec) -> list[Episode]:
        """Return the episode, which a refused request ends; none if a request is not answered yet."""
        try:
            return [await world.start(spec).finish(actor, waves)]
        except Unanswered as error:  # not final: the next attempt may get the answer
            open_still.append(str(error))
            return []

    cell = Cell(what="collect", identity={"play": "collect"}, specs=specs, play=attempt, kinds=(Episode,))
    size = len(specs) if cfg.in_one_block else block_size(cfg.rollout)
    play_into_log(cell, run.trajectories, work, waves, size, write)
    return open_still


STAGE = Stage(version=2, settings=CollectSettings, run=run, play=play)
