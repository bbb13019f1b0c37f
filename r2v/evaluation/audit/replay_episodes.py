"""Replay audit, `r2v verify-results DIR`: every stored episode is executed again, every table built again.

The recorded actions are played in the world that setup.json describes; no model is called. An episode whose
world answers differently (another success, another observation) is named, and so is a table whose bytes differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from r2v.config import EnvConfig, InferenceConfig, PerturbationsConfig, section
from r2v.data.episode import Episode
from r2v.envs.base import Task, load_benchmark
from r2v.errors import InputError
from r2v.evaluation.audit.rebuild_tables import VerifyReport, verify_tables
from r2v.evaluation.setup import Setup, read_setup, stored_episodes
from r2v.log import Progress
from r2v.rollout.session import RolloutWorld, replay

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was checked and found the same."""

    num_episodes: int
    num_faults: int
    """Episodes that a fault of the world ended: recorded as not measured, and not replayed."""
    tables: VerifyReport

    def __str__(self) -> str:
        faults = f" ({self.num_faults} ended by a fault of the world were left out)" if self.num_faults else ""
        return (
            f"{self.num_episodes} episodes replayed with the recorded results{faults}; all "
            f"{self.tables.num_files} files of structured_results are identical"
        )


def world_of(setup: Setup) -> RolloutWorld:
    """The world that an evaluation was played in. Raises InputError where the benchmark has moved on."""
    env = section(EnvConfig, setup.world["env"])
    benchmark = load_benchmark(env.benchmark, env.options)
    if benchmark.version != setup.benchmark_version:
        raise InputError(
            f"these episodes were played on {benchmark.name} version {setup.benchmark_version}, this "
            f"R2V has version {benchmark.version}; check them with the R2V that made them"
        )
    return RolloutWorld(
        benchmark,
        section(PerturbationsConfig, setup.world["perturbations"]),
        section(InferenceConfig, setup.world["inference"]),
    )


def verify_results(results: Path) -> Verified:
    """Replay and rebuild. Raises InputError naming the first episodes or tables that do not hold."""
    setup = read_setup(results)
    world = world_of(setup)
    tasks = {task.task_id: task for task in world.benchmark.tasks()}
    wrong: list[str] = []
    replayed = faults = 0
    with Progress("replay", _planned(setup)) as bar:
        for episode in stored_episodes(results, setup):
            bar.advance()
            if episode.env_fault is not None:
                faults += 1
                continue
            replayed += 1
            problem = _problem(world, tasks, episode)
            if problem is not None:
                wrong.append(f"{episode.condition}/{episode.method} {episode.episode_id}: {problem}")
    if wrong:
        more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise InputError(
            f"{results}: {len(wrong)} of {replayed} episodes do not replay: {'; '.join(wrong[:_SHOWN])}{more}"
        )
    tables = verify_tables(results)
    if not tables.identical:
        raise InputError(
            f"{results}: {replayed} episodes replay, but these files are not what they give: "
            f"{', '.join(tables.differing)}; restore them, or run `r2v evaluate` again"
        )
    return Verified(num_episodes=replayed, num_faults=faults, tables=tables)


def _problem(world: RolloutWorld, tasks: Mapping[str, Task], episode: Episode) -> str | None:
    task = tasks.get(episode.metadata.task_id)
    if task is None:
        return f"no task {episode.metadata.task_id} in {world.benchmark.name}"
    return replay(world, episode, task)


def _planned(setup: Setup) -> int:
    return sum(len(setup.tasks[condition]) * len(setup.seeds) for condition, _, _ in setup.cells())
