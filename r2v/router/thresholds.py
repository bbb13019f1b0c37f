"""Thresholds: matched to a budget by playing, with risk bounds.

The share of steps that go to the LLM is not the share of scores above the threshold: routing changes the states that
are met (a nominal 60 % became 12 % realised, because routing removed the loops). So `match_rate` plays the routed
policy on calibration tasks and reads the realised figures. Methods are compared where they cost the same: equal shares
of LLM steps were up to 28 % apart in USD, since a router that prevents more detours makes shorter episodes.

`learn_then_test` turns per-task losses into a guarantee, P(risk > alpha) <= delta over calibration sets, by
Hoeffding-Bentkus p-values (arXiv 2101.02703, 2110.01052) in a fixed sequence from the safest threshold on. The
sequence is fixed before a calibration task is played (`guarded_thresholds`, of training scores); the unit is the task.

At an operating point r2v keeps its own score, the blend, unless executed calibration tasks prefer another one at the
same cost, by more than `MARGIN` and by more than one standard error of the paired difference over tasks
(`ScoreChoice`). So noise alone seldom changes the score, and a gain model of few positives never costs more than the
margin.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from r2v.config.methods import OURS
from r2v.router.baselines import SIGNALS

MOST_PLAYED = 7
"""Most thresholds that a search plays."""
Point = tuple[str, str]
"""(method, operating point)."""


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Realised figures of a routed policy at one threshold: shares of steps that asked the LLM and of episodes that
    succeeded, and the mean cost of an episode."""

    llm_call_rate: float
    success: float
    cost: float
    """USD as billed, prompt cache included."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A threshold and its realised figures; `evaluated` lists every threshold played, in order."""

    tau: float
    outcome: OperatingPoint
    evaluated: tuple[tuple[float, OperatingPoint], ...]


Spending = Literal["llm_call_rate", "cost"]
"""The figure that places an operating point: the share of LLM steps, or USD as billed per episode."""
TOLERANCES: Mapping[Spending, Callable[[float], float]] = {
    "llm_call_rate": lambda target: 0.005,
    "cost": lambda target: 0.02 * target,
}
"""Tolerated excess over a target."""


def match_rate(
    execute: Callable[[float], OperatingPoint],
    scores: Iterable[float],
    target: float,
    *,
    by: Spending = "llm_call_rate",
    tolerance: float | None = None,
    max_executions: int = MOST_PLAYED,
) -> Choice:
    """Return the threshold that spends most without exceeding `target + tolerance`.

    Searches the distinct scores (`RateSearch`), playing `execute(tau)` at most `max_executions` times, plus once at
    tau = 1 where everything played was above the target. Spending need not be monotone in tau: every threshold
    played counts, ties go to the higher success.
    """
    search = RateSearch(scores, target, by=by, tolerance=tolerance)
    choices = search_together({("", ""): search}, lambda points: [execute(tau) for _, tau in points], max_executions)
    return choices["", ""]


def search_together(
    searches: Mapping[Point, RateSearch],
    play: Callable[[Sequence[tuple[str, float]]], Iterable[OperatingPoint]],
    max_rounds: int = MOST_PLAYED,
) -> dict[Point, Choice]:
    """Return the choice of every search, by (method, operating point). A round plays the requests of all searches, each
    (method, threshold) once, and a search learns from all plays of its method."""
    for round_number in range(max_rounds + 1):
        ended = round_number == max_rounds
        next_taus = {point: search.last_tau if ended else search.next_tau for point, search in searches.items()}
        requests = list(dict.fromkeys((point[0], tau) for point, tau in next_taus.items() if tau is not None))
        for (method, tau), outcome in zip(requests, play(requests) if requests else (), strict=True):
            for point, search in searches.items():
                if point[0] == method:
                    search.tell(tau, outcome)
    return {point: search.choice for point, search in searches.items()}


class RateSearch:
    """The search for one target: the next threshold to play, and the best of those played. `alone`: the figures of the
    small policy alone, where they are known.

    Between a threshold that spends too much and one that does not, the next one is where the target would lie if
    spending fell evenly over the ranks between them. Every second time it is the middle: interpolation converges slowly
    where spending falls unevenly.
    """

    def __init__(
        self,
        scores: Iterable[float],
        target: float,
        *,
        by: Spending = "llm_call_rate",
        tolerance: float | None = None,
        alone: OperatingPoint | None = None,
    ) -> None:
        self._candidates = sorted({score for score in scores if 0 < score < 1} | {0.0, 1.0})
        self._target, self._by = target, by
        self._tolerance = TOLERANCES[by](target) if tolerance is None else tolerance
        self._low, self._high, self._found, self._narrowed = 0, len(self._candidates) - 2, False, 0
        shares = by == "llm_call_rate"
        least = 0.0 if shares else None if alone is None else alone.cost
        self._spent_below: tuple[int, float] | None = (self._low, 1.0) if shares else None
        self._spent_above: tuple[int, float] | None = None if least is None else (self._high + 1, least)
        self._played: dict[float, OperatingPoint] = {}

    @property
    def next_tau(self) -> float | None:
        """The threshold to play next; None where the target is met or no threshold is left in between."""
        if self._found or self._low > self._high:
            return self.last_tau
        rank, below, above = (self._low + self._high) // 2, self._spent_below, self._spent_above
        if self._narrowed % 2 == 0 and below is not None and above is not None and below[1] > above[1]:
            share = (below[1] - self._target) / (below[1] - above[1])
            rank = min(max(round(below[0] + share * (above[0] - below[0])), self._low), self._high)
        return self._candidates[rank]

    @property
    def last_tau(self) -> float | None:
        """1 (the LLM is never asked) if no threshold played keeps to the target; None otherwise."""
        return None if 1.0 in self._played or self._within() else 1.0

    def tell(self, tau: float, outcome: OperatingPoint) -> None:
        """Add the figures of a played threshold, requested by this search or by another of its method."""
        self._played[tau] = outcome
        rank, spent = bisect_left(self._candidates, tau), self._spent(outcome)
        self._found |= abs(spent - self._target) <= self._tolerance
        if not self._low <= rank <= self._high:
            return
        self._narrowed += 1
        if spent > self._target:
            self._low, self._spent_below = rank + 1, (rank, spent)
        else:
            self._high, self._spent_above = rank - 1, (rank, spent)

    @property
    def choice(self) -> Choice:
        """The best threshold played within the target; 1 where there is none."""
        within = self._within() or {1.0: self._played[1.0]}
        tau = max(within, key=lambda tau: (self._spent(within[tau]), within[tau].success, tau))
        return Choice(tau=tau, outcome=within[tau], evaluated=tuple(self._played.items()))

    def _spent(self, outcome: OperatingPoint) -> float:
        return outcome.llm_call_rate if self._by == "llm_call_rate" else outcome.cost

    def _within(self) -> dict[float, OperatingPoint]:
        """Return the figures of the thresholds played that keep to the target."""
        return {tau: o for tau, o in self._played.items() if self._spent(o) <= self._target + self._tolerance}


def hoeffding_bentkus(risk: float, n: int, alpha: float) -> float:
    """Return a p-value for "the true risk is above alpha" from the mean `risk` of n losses in [0, 1]."""
    from scipy.stats import binom

    below = min(risk, alpha)
    hoeffding = math.exp(-n * _binary_divergence(below, alpha))
    # Rounding before ceil: a mean of k/n times n may come out a hair above k.
    bentkus = math.e * float(binom.cdf(math.ceil(round(n * risk, 9)), n, alpha))
    return min(1.0, hoeffding, bentkus)


def _binary_divergence(a: float, b: float) -> float:
    """Return the Kullback-Leibler divergence of Bernoulli(a) from Bernoulli(b), in nats."""
    first = a * math.log(a / b) if a > 0 else 0.0
    second = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return first + second


def learn_then_test(losses: Mapping[float, Sequence[float]], alpha: float, delta: float) -> float | None:
    """Return the largest threshold whose risk is at most `alpha`, wrong with probability at most `delta`.

    `losses[tau]` has one loss in [0, 1] per calibration task, non-decreasing in tau in expectation (a higher
    threshold keeps more steps on the small policy). Thresholds are tested from the smallest on, each at level
    delta, until the first that cannot be shown safe; None where not even the smallest can.
    """
    safe = None
    for tau in sorted(losses):
        if hoeffding_bentkus(fmean(losses[tau]), len(losses[tau]), alpha) > delta:
            break
        safe = tau
    return safe


GUARDED = 10
"""Number of thresholds tested for a guarantee: 0 and evenly spaced score quantiles."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A Learn-then-Test guarantee: with probability 1 - `delta` over calibration tasks, at most `alpha` of tasks fail
    under `tau`. Units are tasks, the loss is a task's share of failed episodes."""

    alpha: float
    delta: float
    n: int
    """Calibration tasks."""
    tau: float | None
    """The largest threshold that holds; None: infeasible with these tasks and this LLM."""
    risks: tuple[tuple[float, float], ...]
    """(threshold, mean loss) of all that were tested; the first is the LLM's own where its threshold is 0."""
    unit: str = "task"

    @property
    def verdict(self) -> str:
        """The guarantee in words."""
        if self.tau is not None:
            return (
                f"at most {self.alpha:g} of tasks fail at threshold {self.tau:g}, wrong with probability {self.delta:g}"
            )
        least = self.risks[0][1]
        why = "the LLM itself fails more" if least > self.alpha else f"{self.n} tasks are too few to show it"
        return f"infeasible: {least:.3f} of {self.n} tasks fail at threshold {self.risks[0][0]:g}; {why}"


def guarantee(losses: Mapping[float, Sequence[float]], alpha: float, delta: float) -> Guarantee:
    """Return the guarantee of `learn_then_test` for these thresholds' losses, one per calibration task."""
    return Guarantee(
        alpha=alpha,
        delta=delta,
        n=min(map(len, losses.values())),
        tau=learn_then_test(losses, alpha, delta),
        risks=tuple((tau, round(fmean(losses[tau]), 6)) for tau in sorted(losses)),
    )


def guarded_thresholds(scores: Iterable[float]) -> list[float]:
    """Return 0 and quantiles of the scores strictly between 0 and 1. The scores must be of training tasks: thresholds
    that depend on the tasks that test them void the guarantee."""
    ranked = sorted({score for score in scores if 0 < score < 1})
    return sorted({0.0, *(ranked[len(ranked) * part // GUARDED] for part in range(1, GUARDED) if ranked)})


ALTERNATIVES = ("disagreement_router", "entropy_router", "sequence_logprob_router")
"""Methods whose scores r2v may use in place of its own."""
MARGIN = 0.03
"""Success by which another score must be better."""
FEWEST_TASKS = 60
"""Calibration tasks below which r2v keeps its own score."""


@dataclass(frozen=True, kw_only=True)
class PlacedScore:
    """A score placed at an operating point by playing calibration tasks; alternatives at the cost of r2v's own
    score."""

    tau: float
    outcome: OperatingPoint
    difference: float = 0.0
    """Its success less that of r2v's own score."""
    standard_error: float = 0.0
    """Of that difference, paired by task."""

    @property
    def preferred(self) -> bool:
        """True if it is better by more than the margin and one standard error."""
        return self.difference > max(MARGIN, self.standard_error)


@dataclass(frozen=True, kw_only=True)
class ScoreChoice:
    """The score that acts at an operating point, and the figures of the choice."""

    score: str
    """The method whose score acts."""
    num_tasks: int
    """Calibration tasks."""
    own: PlacedScore
    compared: dict[str, PlacedScore]
    """By method."""

    @classmethod
    def of(cls, own: PlacedScore, compared: Mapping[str, PlacedScore], num_tasks: int) -> ScoreChoice:
        """Return the choice: the preferred score of the largest difference, the first of equals; else r2v's own."""
        preferred = [name for name, placed in compared.items() if placed.preferred]
        score = max(preferred, key=lambda name: compared[name].difference, default=OURS)
        return cls(score=score, num_tasks=num_tasks, own=own, compared=dict(compared))

    @property
    def acting(self) -> PlacedScore:
        """The placed score that acts."""
        return self.own if self.score == OURS else self.compared[self.score]

    def text(self) -> str:
        """Return the choice in words: "disagreement_router acts: .750 for .667 (+.083, standard error .041) on 60
        tasks"."""
        others = ", ".join(
            f"{name} {score.outcome.success:.3f} ({score.difference:+.3f}, standard error {score.standard_error:.3f})"
            for name, score in self.compared.items()
        )
        return f"{self.score} acts: on {self.num_tasks} calibration tasks r2v {self.own.outcome.success:.3f}, {others}"


def available(features: Iterable[str]) -> tuple[str, ...]:
    """Return the alternatives whose signals are among these features of a step."""
    there = set(features)
    return tuple(name for name in ALTERNATIVES if SIGNALS.get(name) in (None, *there))


def paired(own: Mapping[str, float], other: Mapping[str, float]) -> tuple[float, float]:
    """Return (mean, standard error) of the difference other - own over the tasks that both have, by task."""
    differences = [other[task] - own[task] for task in own if task in other]
    if len(differences) < 2:
        return 0.0, math.inf
    return fmean(differences), stdev(differences) / math.sqrt(len(differences))
