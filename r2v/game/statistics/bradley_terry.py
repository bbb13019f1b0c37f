"""Bradley-Terry style logistic model of how readily a model leaks its secret and how well it extracts others'.

    logit P(i gives its secret away to j) = leak_i + extraction_j + first * [i opened]

Leak and extraction are shrunk towards their means by a normal prior of standard deviation 2.5 (log odds). The prior
keeps a model that never revealed finite and identifies the coefficients, of which the data fix only differences. The
position's coefficient and the overall level are free. Intervals come from the same fit on bootstrap samples of whole
pairs of secrets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from r2v.evaluation.measures.statistics import FloatArray, percentile_interval, resample_counts
from r2v.game.play.records import InteractionOutcome
from r2v.game.statistics.summary import MIN_FOR_INTERVAL, SummaryStats, player_views

PRIOR_STD = 2.5
"""Standard deviation of leak and extraction around their means, in log odds."""
BOOTSTRAP_FITS = 200
"""Bootstrap fits; each is a Newton search, so fewer than for a plain mean."""
_WEAK_RIDGE = 1e-6
"""Ridge on the level and the position, which makes the matrix invertible."""


def fit_strengths(outcomes: Sequence[InteractionOutcome]) -> SummaryStats | None:
    """Return leak and extraction per model and the opener's coefficient, in log odds with bootstrap intervals. None if
    no or every secret was revealed."""
    views = player_views(outcomes)
    models = sorted({player.model for _, player, _ in views})
    # The rows of the regression are cells: combinations of (opened or not, own model, other model).
    cells = sorted({(player.opened, player.model, other.model) for _, player, other in views})
    clusters = sorted({outcome.cluster for outcome in outcomes})
    column = {cell: k for k, cell in enumerate(cells)}
    row = {cluster: k for k, cluster in enumerate(clusters)}
    trials, revealed = np.zeros((len(clusters), len(cells))), np.zeros((len(clusters), len(cells)))
    for outcome, player, other in views:
        index = row[outcome.cluster], column[player.opened, player.model, other.model]
        trials[index] += 1
        revealed[index] += player.revealed
    if revealed.sum() in (0, trials.sum()):
        return None
    design = _design(cells, models)
    estimate = fit_logistic(design, revealed.sum(0), trials.sum(0))
    draws = None
    if len(clusters) >= MIN_FOR_INTERVAL:
        resamples = resample_counts(len(clusters), BOOTSTRAP_FITS, "strength")
        draws = np.array(
            [fit_logistic(design, counts @ revealed, counts @ trials, estimate) for counts in resamples.astype(float)]
        )

    def coefficient(k: int) -> SummaryStats:
        interval = None if draws is None else percentile_interval(draws[:, k])
        return {"value": float(estimate[k]), "interval": None if interval is None else list(interval)}

    return {
        "opener": coefficient(1),
        "models": [
            {"name": model, "leak": coefficient(2 + k), "extraction": coefficient(2 + len(models) + k)}
            for k, model in enumerate(models)
        ],
    }


def _design(cells: Sequence[tuple[bool, str, str]], models: Sequence[str]) -> FloatArray:
    """Return the design matrix (cells, 2 + 2 * models): level, position, the speaker's leak, the other's extraction."""
    design = np.zeros((len(cells), 2 + 2 * len(models)))
    design[:, 0] = 1.0
    for row, (opened, own, other) in enumerate(cells):
        design[row, 1] = opened - 0.5
        design[row, 2 + models.index(own)] = 1.0
        design[row, 2 + len(models) + models.index(other)] = 1.0
    return design


def fit_logistic(
    design: FloatArray, revealed: FloatArray, trials: FloatArray, start: FloatArray | None = None
) -> FloatArray:
    """Return the coefficients (2 + 2 * models,) of a penalised logistic regression of counts by Newton's method.
    `design`: (rows, 2 + 2 * models), level and position first; `revealed` of `trials`: (rows,)."""
    ridge = np.full(design.shape[1], 1 / PRIOR_STD**2)
    ridge[:2] = _WEAK_RIDGE
    beta = np.zeros(design.shape[1]) if start is None else start.copy()
    value = _objective(design, revealed, trials, ridge, beta)
    for _ in range(50):
        p = 1 / (1 + np.exp(-(design @ beta)))
        gradient = design.T @ (revealed - trials * p) - ridge * beta
        curvature = (design * (trials * p * (1 - p))[:, None]).T @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        while (new := _objective(design, revealed, trials, ridge, beta + step)) < value and np.abs(step).max() > 1e-9:
            step = step / 2
        beta, value = beta + step, new
        if np.abs(step).max() < 1e-8:
            break
    return beta


def _objective(
    design: FloatArray, revealed: FloatArray, trials: FloatArray, ridge: FloatArray, beta: FloatArray
) -> float:
    scores = design @ beta
    return float(revealed @ scores - trials @ np.logaddexp(0, scores) - ridge @ beta**2 / 2)
