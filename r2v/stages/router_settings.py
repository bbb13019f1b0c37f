"""Settings of the router's two stages, features and training, executed or imputed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from r2v import config as c

if TYPE_CHECKING:
    from r2v.envs.base import Benchmark
    from r2v.rollout.session import EpisodeSpec


@dataclass(frozen=True, kw_only=True)
class RouterFeaturesSettings:
    """Settings of router features."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    tasks: c.TaskSelection
    router: c.RouterConfig
    """Without the fields that only train_router reads."""
    seed: int | None = field(default=None, metadata=c.IF_GIVEN)
    """Seed of the routers of rounds; None without routed rounds."""

    @property
    def asks_teacher(self) -> bool:
        """True if the stage sends requests to the teacher."""
        return not self.imputed

    @property
    def imputed(self) -> bool:
        """True if nothing is played and the policy acts at its teacher's states (`r2v.stages.impute_router`)."""
        return self.router.imputed

    @classmethod
    def of(cls, config: c.Config) -> RouterFeaturesSettings:
        """Return the part of a configuration that router features read."""
        return c.sections_of(
            cls,
            config,
            inference=config.inference.acting("samples" in config.router.features),
            router=config.router.features_only(),
            seed=config.seed if config.router.routed_rounds else None,
        )

    def specs(self, benchmark: Benchmark, split: str, *, method: str) -> list[EpisodeSpec]:
        """Return a split's episodes: the first `num_calibration_tasks` calibration tasks, or all training tasks."""
        from r2v.rollout.session import episode_specs

        limit = self.router.num_calibration_tasks if split == "calibration" else None
        return episode_specs(benchmark, split, self.router.seeds, self.tasks, method=method, limit=limit)


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """Settings of a router."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    router: c.RouterConfig
    tasks: c.TaskSelection
    seed: int

    @classmethod
    def of(cls, config: c.Config) -> RouterSettings:
        """Return the part of a configuration that a router reads."""
        return c.sections_of(
            cls,
            config,
            inference=config.inference.acting("samples" in config.router.features),
        )

    @property
    def asks_teacher(self) -> bool:
        """True if the stage sends requests to the teacher."""
        return not self.router.imputed
