"""Stage 7, router: a model of where an LLM step gains, and the threshold that spends the budget, found by playing.

    r2v train_router --config configs/mrp.yaml --overrides router.budget=0.1

Writes `r2v.json` (the router), `disagreement_router.json` (the baseline trained on "the LLM would act
otherwise"), `threshold.json` (with every threshold that was played on calibration tasks) and a report. The fit
takes seconds, and what was played at a threshold is in the episode cache: an interrupted run goes on from it.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.log import logger
from r2v.stages import Stage
from r2v.stages.summary_lines import router_line
from r2v.storage.artifact import Work
from r2v.storage.files import write_json

if TYPE_CHECKING:
    from r2v.router.thresholds import Choice, Guarantee


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
    max_examples: int | None = field(default=None, metadata=c.IF_GIVEN)
    """training.router.max_examples."""

    @classmethod
    def of(cls, config: c.Config) -> RouterSettings:
        """The parts of the whole configuration that are read here."""
        return cls(
            env=config.env,
            teacher=config.teacher,
            policy=config.policy,
            perturbations=config.perturbations,
            cost=config.cost,
            inference=config.inference.acting("samples" in config.router.features),
            rollout=config.rollout,
            router=config.router,
            tasks=c.TaskSelection.training(config),
            seed=config.seed,
            max_examples=config.training.router.max_examples,
        )

    @property
    def asks_teacher(self) -> bool:
        """Whether it can't do without the teacher."""
        return not self.router.imputed

    @property
    def num_samples(self) -> int:
        """Samples the router's features need per step."""
        return self.inference.num_candidates if "samples" in self.router.features else 0


def play(cfg: RouterSettings, work: Work) -> None:
    """Play the thresholds that `run` plays; the routers that are fitted for it go nowhere."""
    if cfg.router.imputed:
        logger.info("  router: nothing is played under router.label=imputed")
        return
    with tempfile.TemporaryDirectory(prefix="r2v-router-") as scratch:
        _place(cfg, work, Path(scratch))


def run(cfg: RouterSettings, work: Work) -> None:
    """Fit both routers, place r2v's threshold."""
    if cfg.router.imputed:
        from r2v.router.labels import read_rows
        from r2v.stages.impute_router import impute_router

        impute_router(cfg, read_rows(work.inputs["router_features"].file("router_features.jsonl")), work)
        return
    figures, choice, num_tasks, promised = _place(cfg, work, work.folder)
    write_json(work.folder / "router_report.json", figures)
    write_json(
        work.folder / "threshold.json",
        {
            "tau": choice.tau,
            "budget": cfg.router.budget,
            "realised": asdict(choice.outcome),
            "n_tasks": num_tasks,
            "evaluated": [{"tau": tau, **asdict(outcome)} for tau, outcome in choice.evaluated],
            **({} if promised is None else {"guarantee": {**asdict(promised), "verdict": promised.verdict}}),
        },
    )
    work.summary.update(tau=choice.tau, **asdict(choice.outcome), report=figures)
    logger.info("  router: %s", router_line(work.summary))


def _place(cfg: RouterSettings, work: Work, folder: Path) -> tuple[dict[str, Any], Choice, int, Guarantee | None]:
    """Fit both routers into `folder` and play calibration tasks under r2v's; the report of the fit, the threshold, how
    many tasks were played, and the guarantee where one is asked for."""
    from r2v.evaluation.calibration import failures_at, played_at
    from r2v.evaluation.methods import MethodRunner
    from r2v.rollout.session import episode_specs
    from r2v.router.labels import labelled, read_rows
    from r2v.router.thresholds import guarantee, guarded_thresholds, match_rate
    from r2v.router.training import fit, report

    rows = read_rows(work.inputs["router_features"].file("router_features.jsonl"))
    own = labelled(rows, cfg.router.label, cfg.router.gain_per_usd)
    model = fit(own, cfg.router, cfg.seed, cfg.max_examples)
    model.save(folder / "r2v.json")
    other = replace(cfg.router, label="disagreement")
    disagreement = fit(labelled(rows, "disagreement"), other, cfg.seed, cfg.max_examples)
    disagreement.save(folder / "disagreement_router.json")
    runner = MethodRunner.of(
        cfg,
        work,
        policy=work.inputs["preference"].file("final"),
        router=folder,
        verifier=work.inputs["verifier"].file("final"),
        num_samples=cfg.num_samples,
    )
    specs = episode_specs(
        runner.world.benchmark,
        "calibration",
        cfg.router.seeds,
        cfg.tasks,
        method="r2v",
        limit=cfg.router.num_calibration_tasks,
    )
    scores = {
        split: [model.predict(row.features) for row in own if row.split == split] for split in ("train", "calibration")
    }
    choice = match_rate(lambda tau: played_at(runner, "r2v", specs, tau), scores["calibration"], cfg.router.budget)
    promised = None
    if cfg.router.max_risk is not None:
        losses = {tau: failures_at(runner, "r2v", specs, tau) for tau in guarded_thresholds(scores["train"])}
        promised = guarantee(losses, cfg.router.max_risk, cfg.router.risk_delta)
        logger.info("  guarantee: %s", promised.verdict)
    return report(model, own), choice, len({spec.task.task_id for spec in specs}), promised


STAGE = Stage(version=3, settings=RouterSettings, run=run, play=play)
