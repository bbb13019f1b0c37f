"""Settings of the router's two stages: what its features and the router itself depend on, played or imputed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from r2v import config as c

if TYPE_CHECKING:
    from r2v.envs.base import Benchmark
    from r2v.rollout.session import EpisodeSpec


@dataclass(frozen=True, kw_only=True)
class RouterFeaturesSettings:
    """What the features depend on."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    tasks: c.TaskSelection
    router: c.RouterConfig
    """Without what only the router's own stage reads."""
    seed: int | None = field(default=None, metadata=c.IF_GIVEN)
    """Of the routers that play; None where none does."""

    @property
    def asks_teacher(self) -> bool:
        """Whether it can't do without the teacher."""
        return not self.imputed

    @property
    def imputed(self) -> bool:
        """True: nothing is played; the policy is asked about its teacher's states (`r2v.stages.impute_router`)."""
        return self.router.imputed

    @property
    def samples(self) -> bool:
        """Whether features need further samples of the small policy."""
        return "samples" in self.router.features

    @classmethod
    def of(cls, config: c.Config) -> RouterFeaturesSettings:
        """The parts of the whole configuration that are read here."""
        return c.sections_of(
            cls,
            config,
            inference=config.inference.acting("samples" in config.router.features),
            tasks=c.TaskSelection.training(config),
            router=config.router.features_only(),
            seed=config.seed if config.router.routed_rounds else None,
        )

    def specs(self, benchmark: Benchmark, split: str, *, method: str) -> list[EpisodeSpec]:
        """The episodes of a split: its first `router.num_calibration_tasks` tasks, or all that may be trained on."""
        from r2v.rollout.session import episode_specs

        limit = self.router.num_calibration_tasks if split == "calibration" else None
        return episode_specs(benchmark, split, self.router.seeds, self.tasks, method=method, limit=limit)


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """What a router depends on."""

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
        """The parts of the whole configuration that are read here."""
        return c.sections_of(
            cls,
            config,
            inference=config.inference.acting("samples" in config.router.features),
            tasks=c.TaskSelection.training(config),
        )

    @property
    def asks_teacher(self) -> bool:
        """Whether it can't do without the teacher."""
        return not self.router.imputed

    @property
    def num_samples(self) -> int:
        """Samples the router's features need per step."""
        return self.inference.num_candidates if "samples" in self.router.features else 0
