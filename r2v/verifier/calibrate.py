"""Verifier calibration: a temperature makes probabilities of logits, and a report says what they are worth.

One temperature is fitted on tasks that training did not see. The figures stand beside what costs nothing:
always saying the base rate, the majority class, the length of the episode, and labels in another order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from r2v.log import logger
from r2v.randomness import generator
from r2v.verifier.labels import VerifierExample
from r2v.verifier.model import VerifierModel
from r2v.verifier.scores import auroc, average_precision, brier, ece
from r2v.verifier.train import EncodedExample

TEMPERATURES = (0.05, 20.0)
"""Bounds of the temperature."""


def logits_of(model: VerifierModel, rows: Sequence[EncodedExample], batch: int = 64) -> NDArray[np.float64]:
    """The model's logits before the temperature, (rows,)."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(rows), batch):
            parts.append(model.logits([row.ids for row in rows[start : start + batch]]).double().cpu().numpy())
    return np.concatenate(parts)


def probabilities(logits: ArrayLike, temperature: float) -> list[float]:
    """What `VerifierBackend` would answer: sigmoid(logits / temperature), rounded to 6 decimals."""
    scaled = np.clip(np.asarray(logits, float) / temperature, -700, 700)
    return [round(float(p), 6) for p in 1 / (1 + np.exp(-scaled))]


def fit_temperature(logits: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> float:
    """The T in `TEMPERATURES` that minimises the cross-entropy of sigmoid(logits / T) to soft targets.

    A T at a bound is logged as an error: the scores then say little about the targets.
    """
    from scipy.optimize import minimize_scalar

    z, y, w = (np.asarray(values, float) for values in (logits, targets, weights))

    def loss(log_temperature: float) -> float:
        scaled = z / np.exp(log_temperature)
        return float(np.average(np.logaddexp(0, scaled) - y * scaled, weights=w))

    low, high = np.log(TEMPERATURES)
    best = float(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-7}).x)
    if min(best - low, high - best) < 1e-3:
        logger.error(
            "verifier: the temperature ends at its bound %.3g: its scores say little about the "
            "labels of the calibration tasks",
            np.exp(best),
        )
    return round(float(np.exp(best)), 6)


def report(examples: Sequence[VerifierExample], scores: Sequence[float]) -> dict[str, float | None]:
    """What the scores are worth on these examples; None where a figure needs two classes and there is one.

    An action counts as good where its target is at least 1/2. `auroc_within_state` compares only actions of
    the same state, which is what choosing among candidates needs; `ece` has 15 bins of equal width; Brier
    scores are against the soft targets.
    """
    p, y = np.asarray(scores, float), np.array([example.target for example in examples])
    good = y >= 0.5
    shuffled = np.array(generator("verifier-report").sample(good.tolist(), len(good)))
    figures = {
        "auroc": auroc(p, good),
        "auroc_within_state": _within_state(examples, p, good),
        "auroc_length_alone": auroc(np.array([len(example.messages) for example in examples], float), good),
        "auroc_shuffled_labels": auroc(p, shuffled),
        "pr_auc": average_precision(p, good),
        "accuracy": float(np.mean((p >= 0.5) == good)),
        "accuracy_majority": float(max(good.mean(), 1 - good.mean())),
        "brier": brier(p, y),
        "brier_constant": float(np.var(y)),
        "ece": ece(p, y),
    }
    rounded = {name: None if value is None else round(value, 6) for name, value in figures.items()}
    return {"examples": len(examples), "tasks": len({example.task_id for example in examples}), **rounded}


def _within_state(
    examples: Sequence[VerifierExample], scores: NDArray[np.float64], good: NDArray[np.bool_]
) -> float | None:
    """How often the good one of two actions at one state scores higher, ties counting a half."""
    states: dict[str, list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        states[example.state_id].append(index)
    wins = [
        0.5 + 0.5 * float(np.sign(scores[a] - scores[b])) * (1 if good[a] else -1)
        for indices in states.values()
        for a, b in combinations(indices, 2)
        if good[a] != good[b]
    ]
    return float(np.mean(wins)) if wins else None
