"""Stage 6, router features: rollouts with a counterfactual rollout wherever the LLM would differ, of the small policy
and then, round by round, of the pair routed so far.

    r2v generate_router_features --config configs/mrp.yaml

With `router.label=imputed` nothing is played: see `r2v.stages.impute_router`.

Training and calibration tasks are played under the training conditions (`r2v.stages.router_rounds`,
`r2v.rollout.feature_rollout`); evaluation tasks are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.errors import EmptyResult, UsageError
from r2v.log import logger
from r2v.stages import Stage
from r2v.stages.accept_policy import published_policy
from r2v.stages.summary_lines import features_line
from r2v.stages.verifier_training import trained
from r2v.storage.artifact import Work

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.envs.base import Benchmark
    from r2v.rollout.session import EpisodeSpec
    from r2v.router.labels import FeatureRow


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
    max_examples: int | None = field(default=None, metadata=c.IF_GIVEN)
    """training.router.max_examples, where routers are fitted."""

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
        return cls(
            env=config.env,
            teacher=config.teacher,
            policy=config.policy,
            perturbations=config.perturbations,
            cost=config.cost,
            inference=config.inference.acting("samples" in config.router.features),
            rollout=config.rollout,
            tasks=c.TaskSelection.training(config),
            router=config.router.features_only(),
            seed=config.seed if config.router.routed_rounds else None,
            max_examples=config.training.router.max_examples if config.router.routed_rounds else None,
        )

    def specs(self, benchmark: Benchmark, split: str, *, method: str) -> list[EpisodeSpec]:
        """The episodes of a split: its first `router.num_calibration_tasks` tasks, or all that may be trained on."""
        from r2v.rollout.session import episode_specs

        limit = self.router.num_calibration_tasks if split == "calibration" else None
        return episode_specs(benchmark, split, self.router.seeds, self.tasks, method=method, limit=limit)


ROLLOUTS = "rollouts.jsonl.zst"
"""File of the artifact with the episodes that were played for rows: `FeatureRow.episode_id` and `round` name one."""


def _played(
    cfg: RouterFeaturesSettings, work: Work, faults: list[str]
) -> tuple[list[FeatureRow], Iterator[Episode], dict[str, Any]]:
    """The rows and the episodes of all rounds, and figures of them; faults of the world are added to `faults`."""
    from r2v.evaluation.methods import MethodRunner
    from r2v.rollout.fork import branchable
    from r2v.rollout.session import episode_specs
    from r2v.stages.router_rounds import play_rounds

    runner = MethodRunner.of(
        cfg,
        work,
        policy=published_policy(work),
        verifier=trained(work.inputs.get("verifier")) if cfg.router.reads_verifier else None,
        num_samples=cfg.inference.num_candidates if cfg.samples else 0,
    )
    benchmark, counts = (
        runner.world.benchmark,
        (("train", cfg.router.num_tasks), ("calibration", cfg.router.num_calibration_tasks)),
    )
    every = [
        spec
        for split, count in counts
        for spec in episode_specs(benchmark, split, cfg.router.seeds, cfg.tasks, method="slm_only", limit=count)
    ]
    first = branchable(benchmark, every, "router features")
    rows, rounds, cells = play_rounds(cfg, runner, first, faults)
    if not rows:
        raise EmptyResult(f"router features: {len(first)} roll-outs gave no step; raise router.num_tasks")
    episodes = (records[0] for cell in cells for records in runner.player.records(cell))
    figures = {"n_never_branched": len(every) - len(first), "rounds": [one.plain() for one in rounds]}
    return rows, episodes, figures


def play(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Play what nobody has played yet."""
    if cfg.imputed:
        raise UsageError("generate_router_features: with router.label=imputed nothing is played; it takes no helper")
    _played(cfg, work, [])


def run(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Roll out, branch, round by round, and write router_features.jsonl."""
    from r2v.data.store import write_episodes
    from r2v.router.labels import write_rows

    if cfg.imputed:
        from r2v.stages.impute_router import impute_features

        return impute_features(cfg, work)
    faults: list[str] = []
    rows, episodes, figures = _played(cfg, work, faults)
    write_rows(work.folder / "router_features.jsonl", rows)
    write_episodes(work.folder / ROLLOUTS, episodes)
    work.summary.update(report([row for row in rows if row.round == 0] or rows), n_env_faults=len(faults), **figures)
    logger.info("  router features: %s", features_line(work.summary))


def report(rows: list[FeatureRow]) -> dict[str, Any]:
    """Counts over the small policy's rollouts and their counterfactuals."""
    episodes = {row.episode_id: bool(row.slm_episode_success) for row in rows}
    return {
        "n_steps": len(rows),
        "n_tasks": len({row.task_id for row in rows}),
        "n_disagreements": sum(bool(row.disagrees) for row in rows),
        "n_gain": sum((row.gain or 0) > 0 for row in rows),
        "n_harm": sum((row.gain or 0) < 0 for row in rows),
        "slm_success": round(sum(episodes.values()) / len(episodes), 4),
    }


STAGE = Stage(version=6, settings=RouterFeaturesSettings, run=run, play=play)
