"""Calibration: every threshold of an evaluation, derived from episodes played on calibration tasks.

    records = calibrate(settings, plays, router)        # "<method>@<point>" -> CalibrationRecord

Each play depends on those before it: a search asks for a threshold, reads the realised figures and asks for the next.
`plays` answers it, by playing (`r2v.evaluation.acting.calibration`) or from the records of a results folder
(`RecordedPlays`), so that a stage and the audit of its results come to the same figures by the same functions.

A folder of plays holds `<method>.jsonl.zst`: episodes whose observations are hashes, by task and seed, then by
threshold (`Episode.extra["threshold"]`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from r2v.config import RouterConfig
from r2v.config.methods import OURS
from r2v.data.episode import Episode
from r2v.data.schema import from_dict, parse_json
from r2v.data.store import TrajectoryStore
from r2v.errors import EmptyResult, InputError
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import MAIN, CalibrationRecord
from r2v.log import logger
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
    available,
    match_rate,
    paired,
    search_together,
)

CALIBRATION = "calibration.json"
PLAYS = "calibration"
"""Folder of the plays; those of the router stage lie in `calibration/router`."""
ROUTER = "router"
ROUTER_STATES = "states.json"
"""File beside the router stage's plays: the states and scores that its search began with."""
THRESHOLD = "threshold"
"""Key of `Episode.extra`."""


@dataclass(frozen=True, kw_only=True)
class CalibrationPlay:
    """The part of a played episode that a threshold search looks at: its steps, those that the LLM took, its bill, its
    outcome, and the router's scores along it."""

    task_id: str
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
            task_id=episode.metadata.task_id,
            steps=len(episode.steps),
            llm_calls=sum(step.action_source == "llm_fallback" for step in episode.steps),
            cost=episode.billed_cost,
            success=episode.success,
            env_fault=episode.env_fault,
            scores=tuple(d.p_escalate for d in decisions if d is not None and d.p_escalate is not None),
        )


Plays = Callable[[Sequence[tuple[str, float]]], list[list[CalibrationPlay]]]
"""Calibration tasks under each (method, threshold), one play for each task and seed."""


@dataclass(frozen=True, kw_only=True)
class RecordedPlays:
    """The plays of a folder, by (method, threshold)."""

    folder: Path
    found: Mapping[tuple[str, float], list[CalibrationPlay]]
    asked: set[tuple[str, float]] = field(default_factory=set)
    """Those that a search has looked at."""

    @classmethod
    def read(cls, folder: Path, methods: Iterable[str]) -> RecordedPlays:
        """Read the files of these methods that are there. Raises InputError for a malformed line."""
        plays: dict[tuple[str, float], list[CalibrationPlay]] = {}
        for method in methods:
            path = plays_path(folder, method)
            for episode in TrajectoryStore(path).iter_episodes() if path.exists() else ():
                plays.setdefault((method, threshold_of(episode)), []).append(CalibrationPlay.of(episode))
        return cls(folder=folder, found=plays)

    def __call__(self, requests: Sequence[tuple[str, float]]) -> list[list[CalibrationPlay]]:
        """Raises InputError for a threshold that was not recorded."""
        self.asked.update(requests)
        if lacking := [request for request in requests if request not in self.found]:
            method, tau = lacking[0]
            raise InputError(
                f"{self.folder}: holds no episodes of {method} at threshold {tau}, which the search over the scores in "
                f"{ROUTER_STATES} plays"
            )
        return [self.found[request] for request in requests]


def plays_path(folder: Path, method: str) -> Path:
    """The file of a method's plays."""
    return folder / f"{method}.jsonl.zst"


def threshold_of(episode: Episode) -> float:
    """The threshold that a calibration episode was played at. Raises InputError where it names none."""
    tau = episode.extra.get(THRESHOLD)
    if not isinstance(tau, (int, float)) or isinstance(tau, bool):
        raise InputError(f"episode {episode.episode_id}: extra.{THRESHOLD} is {tau!r}, a number is needed")
    return float(tau)


def successes(plays: Iterable[CalibrationPlay]) -> dict[str, float]:
    """Each task's share of solved episodes; those that a fault of the world ended are not counted."""
    solved: dict[str, list[bool]] = {}
    for play in plays:
        if play.env_fault is None:
            solved.setdefault(play.task_id, []).append(play.success)
    return {task: fmean(shares) for task, shares in solved.items()}


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


def played_at(plays: Plays, method: str, tau: float) -> OperatingPoint:
    """The operating point that executing a method at a threshold comes to."""
    return operating_point_of(plays([(method, tau)])[0])


def place_thresholds(
    plays: Plays, targets: Mapping[Point, float], most: int = MOST_PLAYED, by: Spending = "llm_call_rate"
) -> dict[Point, Choice]:
    """The threshold that realises each target, all of them searched for at once: a round plays the requests of all
    searches, and those of a method share their plays. Each search plays at most `most`."""
    methods = list(dict.fromkeys(method for method, _ in targets))
    unrouted = dict(zip(methods, plays([(method, SCORE_ONLY) for method in methods]), strict=True))
    scores = {method: [score for play in some for score in play.scores] for method, some in unrouted.items()}
    alone = {method: operating_point_of(some) for method, some in unrouted.items()}
    searches = {
        point: RateSearch(scores[point[0]], target, by=by, alone=alone[point[0]]) for point, target in targets.items()
    }
    return search_together(searches, lambda requests: [operating_point_of(some) for some in plays(requests)], most)


def choose_scores(plays: Plays, own: Mapping[str, PlacedScore], alternatives: Sequence[str]) -> dict[str, ScoreChoice]:
    """The score that r2v acts by at each operating point, from its own placed score there: the others are placed at the
    same dollars on the same calibration tasks. Empty where there is nothing to choose from, or too few tasks."""
    if not own or not alternatives:
        return {}
    ours = {point: plays([(OURS, placed.tau)])[0] for point, placed in own.items()}
    num_tasks = len({play.task_id for some in ours.values() for play in some})
    if num_tasks < FEWEST_TASKS:
        return {}
    targets = {(name, point): placed.outcome.cost for point, placed in own.items() for name in alternatives}
    choices = place_thresholds(plays, targets, by="cost")
    choice_by_point = {}
    for point, placed in own.items():
        compared = {}
        for name in alternatives:
            other = choices[name, point]
            (theirs,) = plays([(name, other.tau)])
            difference, error = paired(successes(ours[point]), successes(theirs))
            compared[name] = PlacedScore(
                tau=other.tau,
                outcome=other.outcome,
                difference=round(difference, 6),
                standard_error=round(error, 6),
            )
        choice_by_point[point] = ScoreChoice.of(placed, compared, num_tasks)
        logger.info("  score chosen: point=%s choice=%s", point, choice_by_point[point].text())
    return choice_by_point


@dataclass(frozen=True, kw_only=True)
class RouterStates:
    """The start of the router stage's search: r2v's distinct scores of calibration states, strictly between 0 and 1,
    and the names of a state's features."""

    scores: tuple[float, ...]
    features: tuple[str, ...]

    @classmethod
    def of(cls, scores: Iterable[float], features: Iterable[str]) -> RouterStates:
        """Of all scores."""
        return cls(scores=tuple(sorted({score for score in scores if 0 < score < 1})), features=tuple(features))

    @classmethod
    def read(cls, folder: Path) -> RouterStates:
        """Of a folder of the router stage's plays. Raises InputError."""
        path = folder / ROUTER_STATES
        try:
            return from_dict(cls, parse_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class RouterPoint:
    """r2v's main operating point, as the router stage places it."""

    own: PlacedScore
    evaluated: tuple[tuple[float, OperatingPoint], ...]
    """Every threshold of r2v's own score that was played."""
    choice: ScoreChoice | None
    """None: nothing was chosen, and r2v's own score acts."""

    @property
    def acting(self) -> PlacedScore:
        """The placed score that acts."""
        return self.own if self.choice is None else self.choice.acting


def place_router(router: RouterConfig, plays: Plays, states: RouterStates) -> RouterPoint:
    """Place r2v's score at the budget, a share of LLM steps or dollars over those of the small policy alone, and choose
    the score that acts there."""

    def execute(tau: float) -> OperatingPoint:
        return played_at(plays, OURS, tau)

    if router.budget_over_small is None:
        placed = match_rate(execute, states.scores, router.budget)
    else:
        target = (1 + router.budget_over_small) * execute(1.0).cost
        placed = match_rate(execute, states.scores, target, by="cost")
    own = PlacedScore(tau=placed.tau, outcome=placed.outcome)
    alternatives = available(states.features) if router.choose_score else ()
    choice = choose_scores(plays, {MAIN: own}, alternatives).get(MAIN)
    return RouterPoint(own=own, evaluated=placed.evaluated, choice=choice)


def calibrate(
    settings: EvaluateSettings, plays: Plays, routers: Plays, states: RouterStates
) -> dict[str, CalibrationRecord]:
    """The record of every routed method at every operating point, by "<method>@<point>". The main point comes with the
    router, of whose stage `routers` are the plays. A budget fixes r2v's share of LLM steps under its own score;
    calibration may then let another score act. Every other method is placed at r2v's cost there, in USD as billed
    (at its share of LLM steps where r2v does not play)."""
    budgets, point = settings.evaluation.operating_points, place_router(settings.router, routers, states)
    own = _own_points(settings, plays, point, states.features) if OURS in settings.routed else {}
    by: Spending = "cost" if own else "llm_call_rate"
    target_by_point = {MAIN: point.acting.outcome.llm_call_rate, **budgets}
    target_by_point = {name: own[name].cost if own else rate for name, rate in target_by_point.items()}
    targets = {
        (method, name): value for method in settings.routed if method != OURS for name, value in target_by_point.items()
    }
    choices = place_thresholds(plays, targets, by=by)
    records: dict[str, CalibrationRecord] = {}
    for method in settings.routed:
        for name in target_by_point:
            if method == OURS:
                records[f"{method}@{name}"] = own[name]
            else:
                placed = choices[method, name]
                records[f"{method}@{name}"] = CalibrationRecord(
                    tau=placed.tau, target=target_by_point[name], by=by, **asdict(placed.outcome)
                )
    return records


def _own_points(
    settings: EvaluateSettings, plays: Plays, point: RouterPoint, features: Sequence[str]
) -> dict[str, CalibrationRecord]:
    """r2v's operating points, each by the score that calibration tasks prefer there."""
    budgets = settings.evaluation.operating_points
    placed = place_thresholds(plays, {(OURS, name): rate for name, rate in budgets.items()})
    own = {name: PlacedScore(tau=placed[OURS, name].tau, outcome=placed[OURS, name].outcome) for name in budgets}
    choices: dict[str, Any] = choose_scores(plays, own, available(features) if settings.router.choose_score else ())
    rate = point.acting.outcome.llm_call_rate
    records = {MAIN: _own_record(point.own, rate, point.choice)}
    return records | {name: _own_record(own[name], rate, choices.get(name)) for name, rate in budgets.items()}


def _own_record(own: PlacedScore, target: float, choice: ScoreChoice | None) -> CalibrationRecord:
    acting = own if choice is None else choice.acting
    return CalibrationRecord(tau=acting.tau, target=target, **asdict(acting.outcome), choice=choice)
