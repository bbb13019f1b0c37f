"""Verifier calibration: a temperature makes probabilities of logits, and a report says what they are worth.

One temperature is fitted on tasks that training did not see. The figures stand beside what costs nothing:
always saying the base rate, the majority class, the length of the episode, and whether the teacher acted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from r2v.log import logger
from r2v.verifier.labels import VerifierExample
from r2v.verifier.model import Encode, VerifierModel
from r2v.verifier.scores import auroc, average_precision, brier, ece

TEMPERATURES = (0.05, 20.0)
"""Bounds of the temperature."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What a verifier makes of examples, in their order: logits before the temperature, (examples,), and the features
    that its head reads, (examples, hidden size)."""

    logits: NDArray[np.float64]
    features: NDArray[np.float64]


def readings_of(model: VerifierModel, examples: Sequence[VerifierExample], encode: Encode, batch: int = 64) -> Readings:
    """The model's readings of at least one example."""
    logits, features = [], []
    with torch.inference_mode():
        for start in range(0, len(examples), batch):
            rows = [encode(example.messages, example.action) for example in examples[start : start + batch]]
            states = model.features(rows)
            logits.append(model.score(states).double().cpu().numpy())
            features.append(states.double().cpu().numpy())
    return Readings(logits=np.concatenate(logits), features=np.concatenate(features))


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

    `auroc_within_state` compares only actions of the same state, which is what choosing among candidates needs, and
    `ties_within_state` is the share of these comparisons in which both score the same; `ece` has 15 bins of equal
    width; Brier scores are against the soft targets. `auroc_length_alone` and `auroc_teacher_alone` are those of two
    shortcuts: the length of the conversation, and whether the action is the teacher's (None where it always or never
    is).
    """
    p, y = np.asarray(scores, float), np.array([example.target for example in examples])
    good = np.array([example.good for example in examples])
    teacher = np.array([example.by_teacher for example in examples])
    gaps = _gaps_within_states(examples, p, good)
    figures = {
        "auroc": auroc(p, good),
        "auroc_within_state": float(np.mean(0.5 + 0.5 * np.sign(gaps))) if len(gaps) else None,
        "ties_within_state": float(np.mean(gaps == 0)) if len(gaps) else None,
        "auroc_length_alone": auroc(np.array([len(example.messages) for example in examples], float), good),
        "auroc_teacher_alone": auroc(teacher, good) if 0 < teacher.sum() < len(teacher) else None,
        "pr_auc": average_precision(p, good),
        "accuracy": float(np.mean((p >= 0.5) == good)),
        "accuracy_majority": float(max(good.mean(), 1 - good.mean())),
        "brier": brier(p, y),
        "brier_constant": float(np.var(y)),
        "ece": ece(p, y),
    }
    rounded = {name: None if value is None else round(value, 6) for name, value in figures.items()}
    return {"examples": len(examples), "tasks": len({example.task_id for example in examples}), **rounded}


def _gaps_within_states(
    examples: Sequence[VerifierExample], scores: NDArray[np.float64], good: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """By how much the good one of two actions of a state scores higher, (comparisons,)."""
    states: dict[str, list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        states[example.state_id].append(index)
    return np.array(
        [
            scores[a] - scores[b]
            for indices in states.values()
            for a, b in permutations(indices, 2)
            if good[a] and not good[b]
        ]
    )
