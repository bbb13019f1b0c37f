"""Scores of predicted probabilities: calibration error, Brier score, AUROC and average precision.

Used by the verifier's report and the tables of an evaluation. All functions take predictions and outcomes of shape
(n,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def ece(probabilities: ArrayLike, outcomes: ArrayLike, bins: int = 15, equal_mass: bool = False) -> float:
    """Return the expected calibration error. Bins are [a, b) of equal width, the last one closed; with `equal_mass`
    their edges are quantiles of p, and equal p share a bin."""
    p, y = np.asarray(probabilities, float), np.asarray(outcomes, float)
    edges = np.quantile(p, np.arange(1, bins) / bins) if equal_mass else np.arange(1, bins) / bins
    index = np.searchsorted(edges, p, side="right")
    gaps = np.bincount(index, weights=p - y, minlength=bins)
    return float(np.abs(gaps).sum() / len(p))


def brier(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Return the mean squared error of probabilities."""
    return float(np.mean((np.asarray(probabilities, float) - np.asarray(outcomes, float)) ** 2))


def auroc(scores: ArrayLike, outcomes: ArrayLike) -> float | None:
    """Return the probability that a positive outscores a negative, ties counting 1/2; None with one class only."""
    from sklearn.metrics import roc_auc_score

    positive = np.asarray(outcomes, bool)
    return float(roc_auc_score(positive, np.asarray(scores, float))) if 0 < positive.sum() < positive.size else None


def average_precision(scores: ArrayLike, outcomes: ArrayLike) -> float | None:
    """Return the area under the stepwise precision-recall curve, ties entering together; None without a positive."""
    from sklearn.metrics import average_precision_score

    positive = np.asarray(outcomes, bool)
    return float(average_precision_score(positive, np.asarray(scores, float))) if positive.any() else None
