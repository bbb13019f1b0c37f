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

from r2v.data.episode import Episode
from r2v.errors import EmptyResult
from r2v.evaluation.methods import MethodRunner
from r2v.rollout.cells import Cell
from r2v.rollout.session import EpisodeSpec
from r2v.router.escalation import SCORE_ONLY
from r2v.router.thresholds import MOST_PLAYED, Choice, OperatingPoint, Point, RateSearch, Spending, search_together


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


def failures_at(runner: MethodRunner, method: str, specs: Sequence[EpisodeSpec], tau: float) -> list[float]:
    """Each calibration task's share of failed episodes at a threshold; what a fault of the world ended is left out."""
    cell = calibration_cell(runner, method, specs, tau)
    runner.player.play([cell], "guarantee")
    failed: dict[str, list[bool]] = {}
    for spec, (play,) in zip(cell.specs, runner.player.records(cell), strict=True):
        if play.env_fault is None:
            failed.setdefault(spec.task.task_id, []).append(not play.success)
    return [sum(one) / len(one) for one in failed.values()]


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
