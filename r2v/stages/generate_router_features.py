"""Stage 6, router features: rollouts of the small policy, with a counterfactual rollout wherever the LLM would differ.

    r2v generate_router_features --config configs/mrp.yaml

With `router.label=imputed` nothing is played: see `r2v.stages.impute_router`.

Training and calibration tasks are rolled out by the small policy under its training conditions
(`r2v.rollout.feature_rollout`); evaluation tasks are never touched.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.errors import EmptyResult, UsageError
from r2v.log import logger
from r2v.stages import Stage
from r2v.storage.artifact import Work

if TYPE_CHECKING:
    from r2v.rollout.cells import Cell, CellPlayer
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
    num_tasks: int
    num_calibration_tasks: int
    seeds: list[int]
    samples: bool
    imputed: bool | None = field(default=None, metadata=c.IF_GIVEN)
    """True: nothing is played; the policy is asked about its teacher's states (`r2v.stages.impute_router`)."""

    @property
    def asks_teacher(self) -> bool:
        """Whether it can't do without the teacher."""
        return not self.imputed

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
            num_tasks=config.router.num_tasks,
            num_calibration_tasks=config.router.num_calibration_tasks,
            seeds=config.router.seeds,
            samples="samples" in config.router.features,
            imputed=config.router.imputed or None,
        )


def _cell(cfg: RouterFeaturesSettings, work: Work) -> tuple[CellPlayer, Cell, int]:
    """Who plays, what, and how many episodes are left out because they may not be branched."""
    from r2v.evaluation.methods import MethodRunner
    from r2v.rollout.fork import branchable
    from r2v.rollout.session import episode_specs

    runner = MethodRunner.of(
        cfg,
        work,
        policy=work.inputs["preference"].file("final"),
        verifier=work.inputs["verifier"].file("final"),
        num_samples=cfg.samples and cfg.inference.num_candidates,
    )
    every = [
        spec
        for split, count in (("train", cfg.num_tasks), ("calibration", cfg.num_calibration_tasks))
        for spec in episode_specs(runner.world.benchmark, split, cfg.seeds, cfg.tasks, method="slm_only", limit=count)
    ]
    specs = branchable(runner.world.benchmark, every, "router features")
    cell = runner.feature_rollout(cfg.cost.ratio).cell(
        specs,
        what="roll out, with counterfactuals",
        identity=runner.identity.rollouts(cost_ratio=cfg.cost.ratio),
    )
    return runner.player, cell, len(every) - len(specs)


def play(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Play what nobody has played yet."""
    if cfg.imputed:
        raise UsageError("generate_router_features: with router.label=imputed nothing is played; it takes no helper")
    player, cell, _ = _cell(cfg, work)
    player.play([cell], cell.what)


def run(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Roll out, branch, and write router_features.jsonl."""
    from r2v.rollout.cells import measured
    from r2v.router.labels import write_rows

    if cfg.imputed:
        from r2v.stages.impute_router import impute_features

        return impute_features(cfg, work)
    player, cell, never_branched = _cell(cfg, work)
    faults: list[str] = []
    rows = [row for rows in measured(cell, player, faults) for row in rows]
    if not rows:
        raise EmptyResult(f"router features: {len(cell.specs)} roll-outs gave no step; raise router.num_tasks")
    write_rows(work.folder / "router_features.jsonl", rows)
    work.summary.update(report(rows), n_env_faults=len(faults), n_never_branched=never_branched)
    logger.info("  %s", json.dumps(work.summary))


def report(rows: list[FeatureRow]) -> dict[str, Any]:
    """Counts over the rollouts and their counterfactuals."""
    episodes = {row.episode_id: bool(row.slm_episode_success) for row in rows}
    return {
        "n_steps": len(rows),
        "n_tasks": len({row.task_id for row in rows}),
        "n_disagreements": sum(bool(row.disagrees) for row in rows),
        "n_gain": sum((row.gain or 0) > 0 for row in rows),
        "n_harm": sum((row.gain or 0) < 0 for row in rows),
        "slm_success": round(sum(episodes.values()) / len(episodes), 4),
    }


STAGE = Stage(version=1, settings=RouterFeaturesSettings, run=run, play=play)
