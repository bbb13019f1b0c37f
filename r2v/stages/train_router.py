"""Stage 7, router: a model of the steps at which the LLM gains, and the threshold that spends the budget when executed.

    r2v train_router --config configs/mrp.yaml --overrides router.budget=0.1

Writes `r2v.json` (the router), `disagreement_router.json` (the baseline of labels "the LLM acts otherwise", whose score
is blended into r2v's), `threshold.json` (with all thresholds played on calibration tasks, and the score chosen there),
`calibration/` (the episodes of these plays, and the first scores of the search) and a report. The fit takes seconds,
and plays are in the episode cache, from which an interrupted run resumes.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.config.methods import OURS
from r2v.evaluation.calibration import PLAYS, ROUTER_STATES
from r2v.log import logger
from r2v.stages import Stage
from r2v.stages.accept_policy import published_policy
from r2v.stages.router_settings import RouterSettings
from r2v.stages.summary_lines import router_line
from r2v.stages.verifier_training import trained
from r2v.storage.artifact import Work
from r2v.storage.files import write_json

if TYPE_CHECKING:
    from r2v.evaluation.acting.calibration import ExecutedPlays
    from r2v.evaluation.calibration import RouterPoint, RouterStates
    from r2v.router.thresholds import Guarantee


def play(cfg: RouterSettings, work: Work) -> None:
    """Play the thresholds that `run` plays; the routers fitted for it are discarded."""
    if cfg.router.imputed:
        logger.info("  router: nothing is played under router.label=imputed")
        return
    with tempfile.TemporaryDirectory(prefix="r2v-router-") as scratch:
        _place(cfg, work, Path(scratch))


def run(cfg: RouterSettings, work: Work) -> None:
    """Fit both routers and place r2v's threshold."""
    if cfg.router.imputed:
        from r2v.router.labels import read_rows
        from r2v.stages.impute_router import impute_router

        impute_router(cfg, read_rows(work.inputs["router_features"].file("router_features.jsonl")), work)
        return
    placed = _place(cfg, work, work.folder)
    placed.plays.write(work.folder / PLAYS)
    write_json(work.folder / PLAYS / ROUTER_STATES, asdict(placed.states))
    write_json(work.folder / "router_report.json", placed.figures)
    point, acting = placed.point, placed.point.acting
    write_json(
        work.folder / "threshold.json",
        {
            "tau": acting.tau,
            "score": OURS if point.choice is None else point.choice.score,
            "budget": cfg.router.budget,
            **({} if (over := cfg.router.budget_over_small) is None else {"budget_over_small": over}),
            "realised": asdict(acting.outcome),
            "n_tasks": len({spec.task.task_id for spec in placed.plays.specs}),
            "evaluated": [{"tau": tau, **asdict(outcome)} for tau, outcome in point.evaluated],
            **({} if point.choice is None else {"choice": asdict(point.choice)}),
            **({} if (sure := placed.guarantee) is None else {"guarantee": {**asdict(sure), "verdict": sure.verdict}}),
        },
    )
    work.summary.update(tau=acting.tau, **asdict(acting.outcome), report=placed.figures)
    logger.info("  router placed: figures=%s", router_line(work.summary))


@dataclass(frozen=True, kw_only=True)
class PlacedRouter:
    """A fitted router and its operating point."""

    figures: dict[str, Any]
    """Report of the fit."""
    point: RouterPoint
    plays: ExecutedPlays
    """Plays of the search for the point."""
    states: RouterStates
    guarantee: Guarantee | None


def _place(cfg: RouterSettings, work: Work, folder: Path) -> PlacedRouter:
    """Fit both routers into `folder`, place r2v's threshold on calibration tasks, choose its score, and compute the
    guarantee of `router.max_risk` if set."""
    from r2v.evaluation.acting.calibration import ExecutedPlays
    from r2v.evaluation.acting.methods import MethodRunner
    from r2v.evaluation.calibration import RouterStates, place_router, successes
    from r2v.rollout.session import episode_specs
    from r2v.router.baselines import score_function
    from r2v.router.labels import labelled, read_rows
    from r2v.router.thresholds import guarantee, guarded_thresholds
    from r2v.router.training import fit_routers, report

    rows = read_rows(work.inputs["router_features"].file("router_features.jsonl"))
    model, disagreement = fit_routers(rows, cfg.router, cfg.seed)
    model.save(folder / "r2v.json")
    disagreement.save(folder / "disagreement_router.json")
    runner = MethodRunner.of(
        cfg,
        work,
        policy=published_policy(work),
        router=folder,
        verifier=trained(work.inputs.get("verifier")) if cfg.router.reads_verifier else None,
        num_samples=cfg.router.num_samples(cfg.inference),
    )
    benchmark, seeds, limit = runner.world.benchmark, cfg.router.seeds, cfg.router.num_calibration_tasks
    specs = episode_specs(benchmark, "calibration", seeds, cfg.tasks, method=OURS, limit=limit)
    labelled_rows = labelled(rows, cfg.router.label, cfg.router.canary_price)
    scores = [model.predict(row.features) for row in labelled_rows if row.split == "calibration"]
    plays, states = ExecutedPlays(runner, specs), RouterStates.of(scores, rows[0].features)
    point = place_router(cfg.router, plays, states)
    promised = None
    if cfg.router.max_risk is not None:
        acting = OURS if point.choice is None else point.choice.score
        score = score_function(acting, runner.routers)
        train = [score(row.features, 0, row.task_id, row.step_idx) for row in labelled_rows if row.split == "train"]
        taus = guarded_thresholds(train)
        guarded = ExecutedPlays(runner, specs)([(acting, tau) for tau in taus])
        losses = {
            tau: [1 - share for share in successes(some).values()] for tau, some in zip(taus, guarded, strict=True)
        }
        promised = guarantee(losses, cfg.router.max_risk, cfg.router.risk_delta)
        logger.info("  guarantee: verdict=%s", promised.verdict)
    return PlacedRouter(
        figures=report(model, labelled_rows), point=point, plays=plays, states=states, guarantee=promised
    )


STAGE = Stage(version=6, settings=RouterSettings, run=run, play=play)
