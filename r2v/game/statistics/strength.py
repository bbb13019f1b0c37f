"""How leaky a model is, and how good at getting secrets out of others: a Bradley-Terry style logistic model.

    logit P(i gives its secret away to j) = leak_i + extraction_j + first * [i opened]

Leak and extraction are pulled towards their means by a normal prior of standard deviation 2.5 (log odds), which
keeps a model that never revealed at a finite value and settles what only differences could; the position's
coefficient and the overall level are free. Intervals come from the same fit on bootstrap samples that draw
whole pairs of secrets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from r2v.evaluation.statistics import percentile_interval, resample_counts
from r2v.game.play.records import Outcome
from r2v.game.statistics.summary import Row, seats

PRIOR = 2.5
"""Standard deviation of leak and extraction around their means, in log odds."""
RESAMPLES = 200
"""Bootstrap fits: each is a Newton search, so fewer than of a plain mean."""
_WEAK = 1e-6
"""Ridge on the level and the position: just enough for a matrix that can be inverted."""

Floats = NDArray[np.float64]


def strengths(outcomes: Sequence[Outcome]) -> Row | None:
    """Leak and extraction per model and the opener's coefficient, in log odds, with bootstrap intervals. None where
    nothing or everything was revealed: then there is nothing to fit."""
    taken = seats(outcomes)
    models = sorted({side.model for _, side, _ in taken})
    kinds = sorted({(side.opened, side.model, other.model) for _, side, other in taken})
    names = sorted({outcome.cluster for outcome in outcomes})
    # (pairs of secrets, kinds of seats): how many there were, and how many gave their secret away
    trials, told = np.zeros((len(names), len(kinds))), np.zeros((len(names), len(kinds)))
    place, kind = {name: at for at, name in enumerate(names)}, {one: at for at, one in enumerate(kinds)}
    for outcome, side, other in taken:
        at = place[outcome.cluster], kind[side.opened, side.model, other.model]
        trials[at] += 1
        told[at] += side.revealed
    if told.sum() in (0, trials.sum()):
        return None
    design = _design(kinds, models)
    best = fit(design, told.sum(0), trials.sum(0))
    draws = (
        np.array(
            [
                fit(design, counts @ told, counts @ trials, best)
                for counts in resample_counts(len(names), RESAMPLES, "strength")
            ]
        )
        if len(names) > 1
        else None
    )

    def figure(at: int) -> Row:
        interval = None if draws is None else percentile_interval(draws[:, at])
        return {"value": float(best[at]), "interval": None if interval is None else list(interval)}

    return {
        "opener": figure(1),
        "models": [
            {"name": model, "leak": figure(2 + at), "extraction": figure(2 + len(models) + at)}
            for at, model in enumerate(models)
        ],
    }


def _design(kinds: Sequence[tuple[bool, str, str]], models: Sequence[str]) -> Floats:
    """A row per kind of seat: level, position, the speaker's leak, the other's extraction."""
    design = np.zeros((len(kinds), 2 + 2 * len(models)))
    design[:, 0] = 1.0
    for row, (opened, own, other) in enumerate(kinds):
        design[row, 1] = opened - 0.5
        design[row, 2 + models.index(own)] = 1.0
        design[row, 2 + len(models) + models.index(other)] = 1.0
    return design


def fit(design: Floats, told: Floats, trials: Floats, start: Floats | None = None) -> Floats:
    """Penalised logistic regression of counts by Newton's method. `design`: (rows, 2 + 2 * models), level and position
    first; `told` of `trials`: (rows,). Returns the coefficients: (2 + 2 * models,)."""
    ridge = np.full(design.shape[1], 1 / PRIOR**2)
    ridge[:2] = _WEAK
    beta = np.zeros(design.shape[1]) if start is None else start.copy()
    value = _objective(design, told, trials, ridge, beta)
    for _ in range(50):
        p = 1 / (1 + np.exp(-(design @ beta)))
        gradient = design.T @ (told - trials * p) - ridge * beta
        curvature = (design * (trials * p * (1 - p))[:, None]).T @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        while (new := _objective(design, told, trials, ridge, beta + step)) < value and np.abs(step).max() > 1e-9:
            step = step / 2
        beta, value = beta + step, new
        if np.abs(step).max() < 1e-8:
            break
    return beta


def _objective(design: Floats, told: Floats, trials: Floats, ridge: Floats, beta: Floats) -> float:
    scores = design @ beta
    return float(told @ scores - trials @ np.logaddexp(0, scores) - ridge @ beta**2 / 2)
