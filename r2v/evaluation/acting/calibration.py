"""Calibration: the threshold of every routed method at every operating point, found by playing calibration tasks.

    found = place_thresholds(runner, specs, {("entropy_router", "b0.10"): 0.1, ...})
    found["entropy_router", "b0.10"].tau

Each search plays a threshold, looks at what was realised and plays the next (`r2v.router.thresholds`). All searches
take their steps together, so that a round of them is one set of cells: as wide as there are methods and points; and
those of a method learn from one another's plays. Of a play only what a search looks at is kept (`CalibrationPlay`),
never the episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from r2v.config.methods import OURS
from r2v.data.episode import Episode
from r2v.errors import EmptyResult
from r2v.evaluation.acting.methods import MethodRunner
from r2v.log import logger
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.work_queue import Cell
from r2v.router.escalation import SCORE_ONLY
from r2v.router.thresholds import (
    FEWEST_TASKS,
    MOST_PLAYED,
    Choice,
    OperatingPoint,
    PlacedScore,
    Point,
    RateSearch,
    ScoreChoice,
    Spending,
    paired,
    search_together,
)


@dataclass(frozen=True, kw_only=True)
class CalibrationPlay:
    """What a threshold search looks at in a played episode: its steps, those that the LLM took, its bill, its outcome,
    and the router's scores along it."""

    steps: int
    llm_calls: int
    cost: float
    success: bool
    env_fault: str | None = None
    scores: tuple[float, ...] = ()

    @classmethod
    def of(cls, episode: Episode) -> CalibrationPlay:
        """Of an episode."""
        decisions = [step.decision for step in episode.steps]
        return cls(
            steps=len(episode.steps),
            llm_calls=sum(step.action_source == "llm_fallback" for step in episode.steps),
            cost=episode.billed_cost,
            success=episode.success,
            env_fault=episode.env_fault,
            scores=tuple(d.p_escalate for d in decisions if d is not None and d.p_escalate is not None),
        )


def calibration_cell(runner: MethodRunner, method: str, specs: Sequence[EpisodeSpec], tau: float) -> Cell:
    """A routed method on calibration tasks, at a threshold."""
    return _kept_small(runner.cell(method, specs, tau, what=f"{method} at threshold {tau:.3f}"))


def played_cell(runner: MethodRunner, method: str, specs: Sequence[EpisodeSpec]) -> Cell:
    """A method without a threshold on calibration tasks."""
    return _kept_small(runner.cell(method, specs))


def _kept_small(cell: Cell) -> Cell:
    async def play(spec: EpisodeSpec) -> list[CalibrationPlay]:
        return [CalibrationPlay.of(episode) for episode in await cell.play(spec)]

    return replace(cell, play=play, kinds=(CalibrationPlay,), identity={**cell.identity, "play": "calibration, billed"})


def played_at(runner: MethodRunner, method: str, specs: Sequence[EpisodeSpec], tau: float) -> OperatingPoint:
    """What routing at a threshold comes to when it is executed."""
    cell = calibration_cell(runner, method, specs, tau)
    runner.player.play([cell], "calibration")
    return operating_point_of(play for (play,) in runner.player.records(cell))


def successes_at(runner: MethodRunner, method: str, specs: Sequence[EpisodeSpec], tau: float) -> dict[str, float]:
    """Each calibration task's share of solved episodes at a threshold, as of `successes`."""
    cell = calibration_cell(runner, method, specs, tau)
    runner.player.play([cell], "calibration")
    return successes(cell.specs, (play for (play,) in runner.player.records(cell)))


def successes(specs: Iterable[EpisodeSpec], plays: Iterable[CalibrationPlay]) -> dict[str, float]:
    """Each task's share of solved episodes; those that a fault of the world ended are not counted."""
    solved: dict[str, list[bool]] = {}
    for spec, play in zip(specs, plays, strict=True):
        if play.env_fault is None:
            solved.setdefault(spec.task.task_id, []).append(play.success)
    return {task: fmean(one) for task, one in solved.items()}


def operating_point_of(plays: Iterable[CalibrationPlay]) -> OperatingPoint:
    """Shares and cost of played episodes; those that a world's fault ended are not counted."""
    played = [play for play in plays if play.env_fault is None]
    if not played:
        raise EmptyResult("all calibration episodes ended in a fault of the world")
    return OperatingPoint(
        llm_call_rate=sum(play.llm_calls for play in played) / max(1, sum(play.steps for play in played)),
        cost=sum(play.cost for play in played) / len(played),
        success=sum(play.success for play in played) / len(played),
    )


def place_thresholds(
    runner: MethodRunner,
    specs: Sequence[EpisodeSpec],
    targets: Mapping[Point, float],
    most: int = MOST_PLAYED,
    by: Spending = "llm_call_rate",
) -> dict[Point, Choice]:
    """The threshold that realises each target, all of them searched for at once; each search plays at most so many."""
    methods = list(dict.fromkeys(method for method, _ in targets))
    unrouted = {method: calibration_cell(runner, method, specs, SCORE_ONLY) for method in methods}
    runner.player.play(list(unrouted.values()), "calibration")
    plays = {method: [play for (play,) in runner.player.records(cell)] for method, cell in unrouted.items()}
    scores = {method: [score for play in some for score in play.scores] for method, some in plays.items()}
    alone = {method: operating_point_of(some) for method, some in plays.items()}
    searches = {
        point: RateSearch(scores[point[0]], target, by=by, alone=alone[point[0]]) for point, target in targets.items()
    }

    def play(asked: Sequence[tuple[str, float]]) -> list[OperatingPoint]:
        cells = [calibration_cell(runner, method, specs, tau) for method, tau in asked]
        runner.player.play(cells, "calibration")
        return [operating_point_of(play for (play,) in runner.player.records(cell)) for cell in cells]

    return search_together(searches, play, most)


def choose_scores(
    runner: MethodRunner, specs: Sequence[EpisodeSpec], own: Mapping[str, PlacedScore], alternatives: Sequence[str]
) -> dict[str, ScoreChoice]:
    """The score that r2v acts by at each operating point, from its own placed score there: the others are placed at the
    same dollars on the same calibration tasks. Empty where there is nothing to choose from, or too few tasks."""
    num_tasks = len({spec.task.task_id for spec in specs})
    if not own or not alternatives or num_tasks < FEWEST_TASKS:
        return {}
    targets = {(name, point): placed.outcome.cost for point, placed in own.items() for name in alternatives}
    choices = place_thresholds(runner, specs, targets, by="cost")
    found = {}
    for point, placed in own.items():
        ours = successes_at(runner, OURS, specs, placed.tau)
        compared = {}
        for name in alternatives:
            other = choices[name, point]
            difference, error = paired(ours, successes_at(runner, name, specs, other.tau))
            compared[name] = PlacedScore(
                tau=other.tau,
                outcome=other.outcome,
                difference=round(difference, 6),
                standard_error=round(error, 6),
            )
        found[point] = ScoreChoice.of(placed, compared, num_tasks)
        logger.info("  r2v at %s: %s", point, found[point].text())
    return found
