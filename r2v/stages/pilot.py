"""Pilot: the small and the large model alone on a few calibration tasks, and the oracle that looks ahead of each step.

    r2v pilot --overrides teacher.provider=openai teacher.model_name=gpt-6.1-terra \
        policy.provider=openai policy.model_name=gpt-6-luna teacher.max_usd=5

No stage of the pipeline reads it. It plays calibration tasks, on which thresholds are placed anyway: a trained policy
has seen the training tasks, and the evaluation tasks are for the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from r2v import config as c
from r2v.config.methods import ORACLE, STRONG, WEAK
from r2v.errors import EnvironmentFault
from r2v.stages import Stage
from r2v.stages.accept_policy import published_policy
from r2v.storage.artifact import Work
from r2v.storage.files import write_json

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.evaluation.pilot import Play

PILOT_FIGURES = "pilot.json"


@dataclass(frozen=True, kw_only=True)
class PilotSettings:
    """Settings of a pilot."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    tasks: c.TaskSelection
    num_tasks: int
    seed: int
    """Seed of the worlds."""

    @classmethod
    def of(cls, config: c.Config) -> PilotSettings:
        """Return the part of a configuration that a pilot reads."""
        return c.sections_of(
            cls,
            config,
            inference=config.inference.acting(),
            num_tasks=config.evaluation.pilot_tasks,
            seed=config.router.seeds[0],
        )

    @property
    def same_model(self) -> bool:
        """True if both models are one, with the same settings."""
        if not self.policy.is_api:
            return False
        return bool(c.identity(self.policy.as_endpoint(self.teacher)) == c.identity(self.teacher))


def run(cfg: PilotSettings, work: Work) -> None:
    """Play, and write pilot.json and the episodes. Raise EnvironmentFault where no task was measured."""
    from r2v.data.store import write_episodes
    from r2v.evaluation.acting.methods import MethodRunner
    from r2v.evaluation.pilot import PilotFigures
    from r2v.rollout.fork import branchable
    from r2v.rollout.session import episode_specs

    runner = MethodRunner.of(cfg, work, policy=published_policy(work), logprobs=False)
    benchmark = runner.world.benchmark
    every = episode_specs(benchmark, "calibration", [cfg.seed], cfg.tasks, method="", limit=cfg.num_tasks)
    looks_ahead = benchmark.capabilities.snapshot and len(branchable(benchmark, every, "the oracle")) == len(every)
    cells = {name: runner.cell(name, every) for name in (WEAK, STRONG, *([ORACLE] if looks_ahead else []))}
    runner.player.play(list(cells.values()), "pilot")
    played = {name: [episode for episode, *_ in runner.player.records(cell)] for name, cell in cells.items()}
    for name, episodes in played.items():
        write_episodes(work.folder / "episodes" / f"{name}.jsonl.zst", episodes)
    plays = {name: _plays(episodes) for name, episodes in played.items()}
    try:
        figures = PilotFigures.of(plays[WEAK], plays[STRONG], plays.get(ORACLE), same_model=cfg.same_model)
    except ValueError:
        raise EnvironmentFault(
            "pilot: the world broke in all tasks of one of the models; mend it and run again"
        ) from None
    steps = {name: sum(len(episode.steps) for episode in episodes) / len(episodes) for name, episodes in played.items()}
    record = {"figures": asdict(figures), "verdict": asdict(figures.verdict()), "steps": steps}
    write_json(work.folder / PILOT_FIGURES, record)
    work.summary.update(num_tasks=figures.num_tasks, advice=figures.verdict().advice)


def _plays(episodes: Iterable[Episode]) -> dict[str, Play]:
    from r2v.evaluation.pilot import Play

    return {
        episode.metadata.task_id: Play(solved=episode.success, usd=episode.billed_cost)
        for episode in episodes
        if episode.env_fault is None
    }


STAGE = Stage(version=1, settings=PilotSettings, run=run)
