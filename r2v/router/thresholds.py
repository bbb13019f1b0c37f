"""Thresholds: matched to a budget by playing, and the risk bounds that can be given for them.

The share of steps that go to the LLM is not the share of scores above the threshold: routing changes the
states that are met (a nominal 60 % became 12 % realised, because routing removed the loops). So `match_rate`
plays the routed policy on calibration tasks and looks at what happened.

`learn_then_test` turns per-task losses into a guarantee, P(risk > alpha) <= delta over calibration sets, by
Hoeffding-Bentkus p-values (arXiv 2101.02703, 2110.01052) in a fixed sequence from the safest threshold on.
`conformal_risk` (arXiv 2208.02814) only bounds the expected risk; single calibrations exceed it in a third to half of
all cases. The unit of both is the task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """A routed policy as it was played at one threshold: shares of steps that asked the LLM and of episodes that
    succeeded, and the mean cost of an episode."""

    llm_call_rate: float
    success: float
    cost: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A threshold and what was realised with it; `evaluated` is every threshold played, in order."""

    tau: float
    outcome: OperatingPoint
    evaluated: tuple[tuple[float, OperatingPoint], ...]


def match_rate(
    execute: Callable[[float], OperatingPoint],
    scores: Iterable[float],
    target_rate: float,
    *,
    tolerance: float = 0.005,
    max_executions: int = 7,
) -> Choice:
    """The threshold whose realised LLM rate is highest without exceeding `target_rate + tolerance`.

    Bisects the distinct scores, playing `execute(tau)` at most `max_executions` times, plus once at tau = 1
    where everything played was above the target. The realised rate need not be monotone in tau: whatever was
    played counts, ties go to the better success.
    """
    candidates = sorted({score for score in scores if 0 < score < 1} | {0.0, 1.0})
    low, high = 0, len(candidates) - 1
    played: dict[float, OperatingPoint] = {}
    while low <= high and len(played) < max_executions:
        middle = (low + high) // 2
        outcome = played[candidates[middle]] = execute(candidates[middle])
        if abs(outcome.llm_call_rate - target_rate) <= tolerance:
            break
        if outcome.llm_call_rate > target_rate:
            low = middle + 1
        else:
            high = middle - 1
    if all(outcome.llm_call_rate > target_rate + tolerance for outcome in played.values()):
        played[1.0] = execute(1.0)
    within = {tau: o for tau, o in played.items() if o.llm_call_rate <= target_rate + tolerance}
    tau = max(within, key=lambda tau: (within[tau].llm_call_rate, within[tau].success, tau))
    return Choice(tau=tau, outcome=played[tau], evaluated=tuple(played.items()))


def hoeffding_bentkus(risk: float, n: int, alpha: float) -> float:
    """A p-value for "the true risk is above alpha" from the mean `risk` of n losses in [0, 1]."""
    from scipy.stats import binom

    below = min(risk, alpha)
    hoeffding = math.exp(-n * _binary_divergence(below, alpha))
    # Rounding before ceil: a mean of k/n times n may come out a hair above k.
    bentkus = math.e * float(binom.cdf(math.ceil(round(n * risk, 9)), n, alpha))
    return min(1.0, hoeffding, bentkus)


def _binary_divergence(a: float, b: float) -> float:
    """Kullback-Leibler divergence of Bernoulli(a) from Bernoulli(b), in nats."""
    first = a * math.log(a / b) if a > 0 else 0.0
    second = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return first + second


def learn_then_test(losses: Mapping[float, Sequence[float]], alpha: float, delta: float) -> float | None:
    """The largest threshold whose risk is at most `alpha`, wrong with probability at most `delta`.

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


def conformal_risk(losses: Mapping[float, Sequence[float]], alpha: float) -> float | None:
    """The largest threshold with (sum of losses + 1) / (n + 1) <= alpha, taken before the first that fails:
    bounds the risk in expectation over calibration sets only."""
    safe = None
    for tau in sorted(losses):
        if (math.fsum(losses[tau]) + 1) / (len(losses[tau]) + 1) > alpha:
            break
        safe = tau
    return safe
