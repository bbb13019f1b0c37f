"""Acting settings: the parts of a configuration that an episode of a small policy depends on. A stage's settings import
it on login nodes, so it imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from r2v import config as c


@dataclass(frozen=True, kw_only=True)
class ActingSettings:
    """The settings that an episode of a small policy depends on, and the episodes that are played."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    tasks: c.TaskSelection
    seeds: list[int]

    @classmethod
    def of(cls, config: c.Config) -> ActingSettings:
        """The parts of the whole configuration that are read here."""
        return c.sections_of(
            cls,
            config,
            inference=config.inference.acting(),
            tasks=c.TaskSelection.training(config),
            seeds=config.preference.accept_seeds,
        )
