"""Stage 2, perturb: the training set of successful clean episodes and their perturbed twins.

    r2v perturb --config configs/desk/noisy.yaml --overrides perturbations.distractor.prob=0.3

Twins are made by the constructions of `perturb.constructions` under every training perturbation seed;
perturb_report.json counts the rejected ones by reason. With nothing to perturb the episodes are copied byte for byte.
Memory grows with the ids alone: episodes are written to a draft and sorted from there. Episodes that the teacher plays
again are in the episode cache: helpers play them too, and training sets of other constructions reuse them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from r2v import config as c
from r2v.config import identity
from r2v.data.episode import Condition, Episode, to_line
from r2v.data.manifest import tools_of_runs
from r2v.data.registry import DataRegistry
from r2v.data.split import assign, normalised, require_split
from r2v.data.store import TrajectoryStore
from r2v.data.tools import TOOLS_FILE, write_tools
from r2v.envs.base import Benchmark, load_benchmark
from r2v.errors import EmptyResult, InputError
from r2v.log import logger
from r2v.perturb.offline import Rejected, Report, twins
from r2v.perturb.schedule import Schedule, make_schedule
from r2v.randomness import digest
from r2v.stages import Stage
from r2v.storage.artifact import Work
from r2v.storage.files import replacing, write_json, writing
from r2v.storage.removal import ATTEMPT_PART, remove_own

if TYPE_CHECKING:
    from r2v.rollout.work_queue import BlockPlayer, Cell


@dataclass(frozen=True, kw_only=True)
class PerturbSettings:
    """Settings of a training set."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    perturbations: c.PerturbationsConfig
    perturb: c.PerturbConfig
    condition: Condition
    perturbation_seeds: list[int]
    split_seed: int
    split_by: Literal["task_id", "template_id"]
    max_steps: int
    price: c.Price
    rollout: c.RolloutConfig

    @classmethod
    def of(cls, config: c.Config) -> PerturbSettings:
        """Return the part of a configuration that perturb reads."""
        return c.sections_of(
            cls,
            config,
            condition=config.data.condition,
            perturbation_seeds=config.data.perturbation_seeds.train,
            split_seed=config.data.split_seed,
            split_by=config.data.split_by,
            max_steps=config.inference.max_steps,
            price=config.cost.llm_price,
        )

    @property
    def asks_teacher(self) -> bool:
        """True if the teacher plays episodes again."""
        return self.condition != "clean" and "reroll" in self.perturb.constructions


@dataclass(frozen=True, slots=True)
class Parent:
    """Id and run of the clean episode of a re-rolled one."""

    episode_id: str
    run_id: str | None


def run(cfg: PerturbSettings, work: Work) -> None:
    """Read the runs, make the twins, and write all episodes in the order of their ids. Raise EmptyResult if none."""
    scratch, report = work.folder / "tmp", Report()
    scratch.mkdir(exist_ok=True)
    registry, run_ids = DataRegistry(work.root / "data"), work.inputs["collect"].summary["run_ids"]
    clean = registry.merge_runs(run_ids, scratch / "clean.jsonl", include_running=True)
    if (tools := tools_of_runs([registry.get(run_id) for run_id in run_ids])) is not None:
        write_tools(work.folder / TOOLS_FILE, tools)
    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options)
    episodes = training_set(cfg, benchmark, clean, report, work)
    written = write_sorted(work.folder / "trajectories.jsonl", episodes, scratch / "draft.jsonl")
    counts = report.as_json()
    if not written:
        raise EmptyResult(
            f"no episode to train on: read {json.dumps(counts['read'])}, rejected "
            f"{json.dumps(counts['rejected'])}; collect episodes that succeed, or set "
            "perturb.include_clean=true"
        )
    write_json(work.folder / "perturb_report.json", counts)
    work.summary.update(n_episodes=written, **counts)
    remove_own(scratch, ATTEMPT_PART)
    by_construction = ", ".join(f"{n} {name}" for name, n in counts["made"].items())
    logger.info("  training set written: episodes=%d constructions=%s", written, by_construction)


def write_sorted(path: Path, episodes: Iterable[Episode], draft: Path) -> int:
    """Write the episodes in the order of their ids; return their number. Only ids and offsets stay in memory.
    Raise InputError where two have the same id."""
    places: dict[str, int] = {}
    with writing(draft), draft.open("wb") as file:
        for episode in episodes:
            if episode.episode_id in places:
                raise InputError(f"{path}: two episodes are called {episode.episode_id}; merge the runs anew")
            places[episode.episode_id] = file.tell()
            file.write(to_line(episode).encode() + b"\n")
    with draft.open("rb") as file, replacing(path) as target:
        for name in sorted(places):
            file.seek(places[name])
            target.write(file.readline())
    return len(places)


def play(cfg: PerturbSettings, work: Work) -> None:
    """Play the missing re-rolled episodes; the rest of the stage takes one process a few seconds."""
    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options)
    schedules = _schedules(cfg, benchmark)
    if not (cfg.asks_teacher and schedules):
        logger.info("  no episode to play again: perturb.constructions=%s", cfg.perturb.constructions)
        return
    episodes = DataRegistry(work.root / "data").iter_episodes(work.inputs["collect"].summary["run_ids"])
    parents = [_key(episode) for episode in _usable(cfg, benchmark, episodes, Report()) if episode.executed]
    if parents:
        player, cell = _reroll_cell(cfg, benchmark, parents, [schedule.seed for schedule in schedules], work)
        player.play([cell], cell.what)


def training_set(
    cfg: PerturbSettings, benchmark: Benchmark, clean: TrajectoryStore, report: Report, work: Work
) -> Iterator[Episode]:
    """Yield the clean episodes, their offline twins, then the re-rolled episodes."""
    schedules = _schedules(cfg, benchmark)
    parents: dict[tuple[str, int], Parent] = {}
    readings: set[bytes] = set()
    for episode in _usable(cfg, benchmark, clean.iter_episodes(), report):
        if episode.executed:  # an imported one has no world to be played in again
            parents.setdefault(_key(episode), Parent(episode.episode_id, episode.metadata.run_id))
        if cfg.perturb.include_clean or not schedules:
            yield report.add(episode)
        for schedule in schedules:
            for twin in twins(
                episode,
                schedule,
                cfg.perturb.constructions,
                max_steps=cfg.max_steps,
                idempotent=benchmark.capabilities.idempotent_errors,
                report=report,
            ):
                readings.add(_reading(twin))
                yield twin
    if schedules and parents and "reroll" in cfg.perturb.constructions:
        for episode in reroll(cfg, benchmark, parents, [schedule.seed for schedule in schedules], work):
            yield from report.accepted("reroll", _judged(episode, parents, readings))


def _schedules(cfg: PerturbSettings, benchmark: Benchmark) -> list[Schedule]:
    """Return the perturbations of each training seed that perturbs anything."""
    drawn = [make_schedule(benchmark, cfg.perturbations, cfg.condition, seed) for seed in cfg.perturbation_seeds]
    return [schedule for schedule in drawn if schedule.active]


def _key(episode: Episode) -> tuple[str, int]:
    """Return the task and seed under which an episode is played again."""
    return episode.metadata.task_id, episode.metadata.seed


def _usable(cfg: PerturbSettings, benchmark: Benchmark, clean: Iterable[Episode], report: Report) -> Iterator[Episode]:
    """Yield the successes among the runs' episodes. Raise InputError for one of another split or condition."""
    splits = assign(benchmark.tasks(), by=cfg.split_by, seed=cfg.split_seed)
    task_of_goal = {normalised(task.goal): task.task_id for task in benchmark.tasks()}
    for episode in clean:
        about = episode.metadata
        run, same = f"run {about.run_id}", task_of_goal.get(normalised(about.goal), about.task_id)
        if episode.executed:
            require_split([about.task_id], splits, ("train",), run)
        elif any(splits.get(task, "train") != "train" for task in (about.task_id, same)):
            raise InputError(
                f"{run}: {episode.episode_id} was imported and is of task {same} of {benchmark.name}, which nothing is "
                "trained on; take it out of what is imported"
            )
        if episode.condition != "clean":
            raise InputError(
                f"{run}: episode {episode.episode_id} is {episode.condition}, perturb starts "
                "from clean ones; name other runs in data.runs"
            )
        usable = episode.demonstrates
        report.read["success" if usable else "failed"] += 1
        if usable:
            yield episode


def reroll(
    cfg: PerturbSettings,
    benchmark: Benchmark,
    parents: Iterable[tuple[str, int]],
    seeds: Sequence[int],
    work: Work,
) -> Iterator[Episode]:
    """Return the teacher's episodes of these tasks and seeds in the perturbed world, playing missing ones. Raise
    EnvironmentFault where the world failed in all of them."""
    player, cell = _reroll_cell(cfg, benchmark, parents, seeds, work)
    player.play([cell], cell.what)
    return (episode for (episode,) in player.records(cell))


def _reroll_cell(
    cfg: PerturbSettings, benchmark: Benchmark, parents: Iterable[tuple[str, int]], seeds: Sequence[int], work: Work
) -> tuple[BlockPlayer, Cell]:
    """Return player and cell of all parents and perturbation seeds, sorted: every process cuts the same blocks."""
    from r2v.rollout.actors import GreedyActor
    from r2v.rollout.model_factory import Payer, engine, priced_teacher, teacher_name
    from r2v.rollout.session import EpisodeSpec, RolloutWorld
    from r2v.rollout.sites import SitePool
    from r2v.rollout.work_queue import BlockPlayer, Cell

    waves = engine(cfg.rollout, benchmark, cfg.teacher)
    side = priced_teacher(cfg.teacher, c.CostConfig(llm=cfg.price.of_tokens), benchmark, waves, Payer.of(work))
    actor = GreedyActor(side, "teacher")
    sites = SitePool.of(cfg.rollout, benchmark, work.root)
    world = RolloutWorld(benchmark, cfg.perturbations, c.InferenceConfig(max_steps=cfg.max_steps), sites)
    by = {"teacher_model": teacher_name(cfg.teacher, benchmark), "teacher_provider": cfg.teacher.provider}
    tasks = {task.task_id: task for task in benchmark.tasks()}

    async def play_again(spec: EpisodeSpec) -> list[Episode]:
        return [await world.start(spec).finish(actor, waves)]

    cell = Cell(
        what="perturb",
        identity={
            "play": "reroll",
            "world": [identity(cfg.env), benchmark.version, identity(cfg.perturbations), cfg.max_steps],
            "llm": [identity(cfg.teacher), identity(cfg.price)],
        },
        specs=[
            EpisodeSpec(
                task=tasks[task_id],
                seed=seed,
                condition=cfg.condition,
                perturbation_seed=perturbation_seed,
                split="train",
                run=by,
            )
            for perturbation_seed in seeds
            for task_id, seed in sorted(set(parents))
        ],
        play=play_again,
        kinds=(Episode,),
    )
    return BlockPlayer.of(waves, work, cfg.rollout), cell


def _judged(episode: Episode, parents: Mapping[tuple[str, int], Parent], readings: set[bytes]) -> Episode | Rejected:
    """Return a re-rolled episode as it enters the training set, or the reason that it is rejected."""
    if not episode.success:
        return Rejected.FAILED
    if not any(step.perturbations for step in episode.steps):
        return Rejected.UNTOUCHED
    if _reading(episode) in readings:
        return Rejected.DUPLICATE
    parent = parents[_key(episode)]
    return replace(
        episode,
        construction="reroll",
        parent_episode_id=parent.episode_id,
        metadata=replace(episode.metadata, run_id=parent.run_id),
    )


def _reading(episode: Episode) -> bytes:
    """Return the hash of an episode's training text: two with the same one are duplicate examples."""
    turns = (text for step in episode.steps for text in (step.observation.raw_text, step.action.raw_text))
    return digest(episode.metadata.task_id, episode.metadata.goal, *turns)[:16]


STAGE = Stage(version=3, settings=PerturbSettings, run=run, play=play)
