"""Scores of predicted probabilities: calibration error, Brier score, AUROC and average precision.

They serve the verifier's report and the tables of an evaluation alike. Every function takes predictions and outcomes of
shape (n,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def ece(probabilities: ArrayLike, outcomes: ArrayLike, bins: int = 15, equal_mass: bool = False) -> float:
    """Expected calibration error. Bins are [a, b) of equal width, the last one closed, so p = 1 counts; with
    `equal_mass` their edges are quantiles of p, and tied p stay together."""
    p, y = np.asarray(probabilities, float), np.asarray(outcomes, float)
    edges = np.quantile(p, np.arange(1, bins) / bins) if equal_mass else np.arange(1, bins) / bins
    index = np.searchsorted(edges, p, side="right")
    gaps = np.bincount(index, weights=p - y, minlength=bins)
    return float(np.abs(gaps).sum() / len(p))


def brier(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Mean squared error of probabilities."""
    return float(np.mean((np.asarray(probabilities, float) - np.asarray(outcomes, float)) ** 2))


def auroc(scores: ArrayLike, outcomes: ArrayLike) -> float | None:
    """Probability that a positive outscores a negative, ties counting a half. None with one class only."""
    from sklearn.metrics import roc_auc_score

    positive = np.asarray(outcomes, bool)
    return float(roc_auc_score(positive, np.asarray(scores, float))) if 0 < positive.sum() < positive.size else None


def average_precision(scores: ArrayLike, outcomes: ArrayLike) -> float | None:
    """Area under the precision-recall curve by steps; tied scores enter together. None without a positive."""
    from sklearn.metrics import average_precision_score

    positive = np.asarray(outcomes, bool)
    return float(average_precision_score(positive, np.asarray(scores, float))) if positive.any() else None
