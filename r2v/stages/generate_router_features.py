"""Stage 6, router features: rollouts with a counterfactual rollout at each disagreement of the LLM, of the small policy
and then, round by round, of the routed pair.

    r2v generate_router_features --config configs/mrp.yaml

With `router.label=imputed` nothing is played: see `r2v.stages.impute_router`.

Training and calibration tasks are played under the training conditions (`r2v.rollout.stage_rollouts.features`);
evaluation tasks are never touched.

Round 0 is the small policy alone. In each later round a router is fitted on all rows so far, its thresholds are placed
on calibration tasks at `router.round_budgets`, and it plays tasks, each at one threshold. Every step is labelled by the
outcomes of asking and of not asking when the router at this threshold continues. So labels count later LLM steps, and
states are those of a routed policy; cf. fitted Q iteration and DAgger (arXiv 1011.0686).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from r2v.config.methods import OURS
from r2v.constraints import CountOrNone, NotNegative, Share
from r2v.data.episode import to_line
from r2v.errors import EmptyResult, UsageError
from r2v.log import logger
from r2v.router.escalation import SCORE_ONLY, escalates
from r2v.router.labels import FeatureRow, write_rows
from r2v.router.models import CONSTANT, RouterModel
from r2v.stages import Stage
from r2v.stages.accept_policy import published_policy
from r2v.stages.router_settings import RouterFeaturesSettings
from r2v.stages.summary_lines import features_line, round_line
from r2v.stages.verifier_training import trained
from r2v.storage.artifact import Work
from r2v.storage.files import write_lines

if TYPE_CHECKING:
    from r2v.evaluation.acting.methods import MethodRunner
    from r2v.rollout.session import EpisodeSpec
    from r2v.rollout.work_queue import Cell


ROLLOUTS = "rollouts.jsonl.zst"
"""File of the artifact with the rows' episodes, each named by `FeatureRow.episode_id` and `round`."""


PLACING_PLAYS = 4
"""Most thresholds played to place one of a round: labels need no exact share of LLM steps."""


def _played(
    cfg: RouterFeaturesSettings, work: Work, faults: list[str]
) -> tuple[list[FeatureRow], Iterator[str], dict[str, Any]]:
    """Return the rows, the episodes' lines and the figures of all rounds; append the world's faults to `faults`."""
    from r2v.evaluation.acting.methods import MethodRunner
    from r2v.rollout.fork import branchable
    from r2v.rollout.session import episode_specs

    runner = MethodRunner.of(
        cfg,
        work,
        policy=published_policy(work),
        verifier=trained(work.inputs.get("verifier")) if cfg.router.reads_verifier else None,
        num_samples=cfg.router.num_samples(cfg.inference),
    )
    benchmark = runner.world.benchmark
    counts = (("train", cfg.router.num_tasks), ("calibration", cfg.router.num_calibration_tasks))
    every = [
        spec
        for split, count in counts
        for spec in episode_specs(benchmark, split, cfg.router.seeds, cfg.tasks, method="slm_only", limit=count)
    ]
    first = branchable(benchmark, every, "router features")
    rows, rounds, cells = _play_rounds(cfg, runner, first, faults)
    if not rows:
        raise EmptyResult(f"router features: {len(first)} roll-outs gave no step; raise router.num_tasks")
    episodes = (to_line(episode) for cell in cells for episode in runner.player.plain_episodes(cell))
    figures = {"n_never_branched": len(every) - len(first), "rounds": [asdict(figures) for figures in rounds]}
    return rows, episodes, figures


def _play_rounds(
    cfg: RouterFeaturesSettings, runner: MethodRunner, first: Sequence[EpisodeSpec], faults: list[str]
) -> tuple[list[FeatureRow], list[RoundFigures], list[Cell]]:
    """Return the rows, figures and cells of round 0, which plays `first`, and of the routed rounds; append the world's
    faults to `faults`. Helpers call it too: every process plays the same cells."""
    from r2v.rollout.stage_rollouts.features import rows_of
    from r2v.rollout.work_queue import measured
    from r2v.router.training import fit_routers

    cells = [runner.feature_cell(first, "roll out, with counterfactuals")]
    thresholds: dict[str, float] = {}
    rows: list[FeatureRow] = []
    figures: list[RoundFigures] = []
    played: list[Cell] = []
    model: RouterModel | None = None
    for number in range(cfg.router.routed_rounds + 1):
        if number:
            if model is None or model.kind == CONSTANT:
                logger.warning("  router rounds ended, the fitted router is constant: round=%d", number)
                break
            cells, thresholds = _routed(cfg, runner.routed_by(model), number)
        runner.player.play(cells, f"round {number}" if number else cells[0].what)
        new = [row for cell in cells for row in rows_of(measured(cell, runner.player, faults))]
        played += cells
        rows += new
        before, fits = model, cfg.router.routed_rounds and rows
        model = fit_routers(rows, cfg.router, cfg.seed or 0)[0] if fits else None
        figures.append(RoundFigures.of(number, thresholds, new, before, model))
        logger.info("  router round played: figures=%s", round_line(asdict(figures[-1])))
    return rows, figures, played


def _routed(cfg: RouterFeaturesSettings, runner: MethodRunner, number: int) -> tuple[list[Cell], dict[str, float]]:
    """Return the cells of a round, and its thresholds by budget."""
    from r2v.evaluation.acting.calibration import ExecutedPlays
    from r2v.evaluation.calibration import place_thresholds
    from r2v.rollout.fork import branchable

    router, benchmark = cfg.router, runner.world.benchmark
    budgets = {f"{budget:g}": budget for budget in router.round_budgets}
    calibration = cfg.specs(benchmark, "calibration", method=OURS)
    targets = {(OURS, name): budget for name, budget in budgets.items()}
    choices = place_thresholds(ExecutedPlays(runner, calibration), targets, PLACING_PLAYS)
    # strictly between 0 and 1, so that the router is consulted at every step
    thresholds = {name: min(max(choices[OURS, name].tau, 1 - SCORE_ONLY), SCORE_ONLY) for name in budgets}
    start = router.num_tasks + (number - 1) * router.round_tasks
    train = _window(cfg.specs(benchmark, "train", method=OURS), start, router.round_tasks)
    specs = branchable(benchmark, [*train, *calibration], "router features")
    dealt = {name: specs[index :: len(budgets)] for index, name in enumerate(budgets)}
    cells = [
        runner.feature_cell(dealt[name], f"round {number}, asking {name}", tau=tau, number=number)
        for name, tau in thresholds.items()
        if dealt[name]
    ]
    return cells, thresholds


def _window(specs: Sequence[EpisodeSpec], start: int, count: int) -> list[EpisodeSpec]:
    """Return the episodes of `count` tasks from the `start`-th on, wrapping around at the last."""
    tasks = list(dict.fromkeys(spec.task.task_id for spec in specs))
    chosen = {tasks[(start + index) % len(tasks)] for index in range(min(count, len(tasks)))}
    return [spec for spec in specs if spec.task.task_id in chosen]


def play(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Play the missing episodes. Raise UsageError with imputed labels, which play none."""
    if cfg.imputed:
        raise UsageError("generate_router_features: with router.label=imputed nothing is played; it takes no helper")
    _played(cfg, work, [])


def run(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Roll out and branch, round by round, and write router_features.jsonl."""
    if cfg.imputed:
        from r2v.stages.impute_router import impute_features

        return impute_features(cfg, work)
    faults: list[str] = []
    rows, episodes, figures = _played(cfg, work, faults)
    write_rows(work.folder / "router_features.jsonl", rows)
    write_lines(work.folder / ROLLOUTS, episodes)
    work.summary.update(report([row for row in rows if row.round == 0] or rows), n_env_faults=len(faults), **figures)
    logger.info("  router features written: figures=%s", features_line(work.summary))


def report(rows: list[FeatureRow]) -> dict[str, Any]:
    """Return counts over the small policy's rollouts and their counterfactuals."""
    episodes = {row.episode_id: bool(row.slm_episode_success) for row in rows}
    return {**_counts(rows), "slm_success": round(sum(episodes.values()) / len(episodes), 4)}


def _counts(rows: Sequence[FeatureRow]) -> dict[str, int]:
    return {
        "n_steps": len(rows),
        "n_tasks": len({row.task_id for row in rows}),
        "n_disagreements": sum(bool(row.disagrees) for row in rows),
        "n_gain": sum((row.gain or 0) > 0 for row in rows),
        "n_harm": sum((row.gain or 0) < 0 for row in rows),
    }


STAGE = Stage(version=6, settings=RouterFeaturesSettings, run=run, play=play)


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """Figures of a round: its episodes, gains, and change of the router."""

    round: CountOrNone
    thresholds: dict[str, Share] = field(default_factory=dict)
    """By budget; empty in round 0."""
    n_tasks: CountOrNone
    n_steps: CountOrNone
    n_disagreements: CountOrNone
    n_gain: CountOrNone
    """Steps at which asking the LLM gained success."""
    n_harm: CountOrNone
    """Steps at which it lost success."""
    llm_call_rate: Share
    cost: NotNegative
    """USD as billed: its episodes, the LLM's proposals at their steps, and all continuations."""
    auroc_before: Share | None = None
    """AUROC for this round's gains, on calibration tasks, of the router that played; None without one."""
    auroc_after: Share | None = None
    """AUROC of the router that is fitted on this round too."""
    moved: Share | None = None
    """Share of these steps at which the new router decides otherwise, at the played threshold."""

    @classmethod
    def of(
        cls,
        number: int,
        thresholds: dict[str, float],
        rows: Sequence[FeatureRow],
        before: RouterModel | None,
        after: RouterModel | None,
    ) -> RoundFigures:
        """Return the figures of a round's rows; `before` is the router that played, `after` the one fitted on them."""
        held = [row for row in rows if row.split == "calibration"]
        decided = [row for row in held if row.threshold is not None and before is not None and after is not None]
        return cls(
            round=number,
            thresholds=thresholds,
            **_counts(rows),
            llm_call_rate=round(fmean([row.actor != "slm" for row in rows] or [0.0]), 6),
            cost=round(sum(row.spent for row in rows), 6),
            auroc_before=_auroc(before, held),
            auroc_after=_auroc(after, held),
            moved=round(fmean(_moves(before, after, row) for row in decided), 6) if decided else None,
        )


def _auroc(model: RouterModel | None, rows: Sequence[FeatureRow]) -> float | None:
    from r2v.verifier.scores import auroc

    if model is None:
        return None
    area = auroc([model.predict(row.features) for row in rows], [(row.gain or 0) > 0 for row in rows])
    return None if area is None else round(area, 6)


def _moves(before: RouterModel | None, after: RouterModel | None, row: FeatureRow) -> bool:
    assert before is not None and after is not None and row.threshold is not None
    return escalates(before.predict(row.features), row.threshold) != escalates(
        after.predict(row.features), row.threshold
    )
