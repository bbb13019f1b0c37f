"""Held-out scores: verifiers' scores of examples that they were not trained on, and their report.

    scores = score_held_out(verifier, of_calibration_tasks, encode, controls=True)
    scores = pooled(score_held_out(fold, of_its_tasks, encode, controls=True) for fold, of_its_tasks in folds)

One temperature is fitted to them. The report compares their figures with trivial predictors: the base rate, the
majority class, the length of the episode, and the actor (teacher or not).

The controls reveal good scores without judging the action. If an observation names the outcome, a score may be read
from it: hiding the last one shows its share of the AUROC. A verifier whose features separate the teacher's actions from
others may score their style instead of their effect (arXiv 2504.07164).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from r2v.log import logger
from r2v.verifier.labels import VerifierExample
from r2v.verifier.model import Encode, VerifierModel
from r2v.verifier.scores import auroc, average_precision, brier, ece
from r2v.wire.message import Message

TEMPERATURES = (0.05, 20.0)
"""Bounds of the fitted temperature."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Outputs of a verifier for examples in order: logits before the temperature, (examples,), and the input of its
    head, (examples, hidden size)."""

    logits: NDArray[np.float64]
    features: NDArray[np.float64]


def readings_of(model: VerifierModel, examples: Sequence[VerifierExample], encode: Encode, batch: int = 64) -> Readings:
    """Return the model's readings of at least one example."""
    logits, features = [], []
    with torch.inference_mode():
        for start in range(0, len(examples), batch):
            rows = [encode(example.messages, example.action) for example in examples[start : start + batch]]
            states = model.features(rows)
            logits.append(model.score(states).double().cpu().numpy())
            features.append(states.double().cpu().numpy())
    return Readings(logits=np.concatenate(logits), features=np.concatenate(features))


def probabilities(logits: ArrayLike, temperature: float) -> list[float]:
    """Return sigmoid(logits / temperature) rounded to 6 decimals, as `VerifierBackend` does."""
    scaled = np.clip(np.asarray(logits, float) / temperature, -700, 700)
    return [round(float(p), 6) for p in 1 / (1 + np.exp(-scaled))]


def fit_temperature(logits: ArrayLike, targets: ArrayLike, weights: ArrayLike) -> float:
    """Return the T within `TEMPERATURES` that minimises the cross-entropy of sigmoid(logits / T) to soft targets.

    A T at a bound is logged as an error: the scores are then nearly uninformative. All arrays (examples,).
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
            "verifier's temperature at its bound, scores nearly uninformative on calibration tasks: temperature=%.3g",
            np.exp(best),
        )
    return round(float(np.exp(best)), 6)


def report(examples: Sequence[VerifierExample], scores: Sequence[float]) -> dict[str, float | None]:
    """Return the quality of scores on these examples; a figure that needs two classes is None with one.

    `auroc_within_state` compares only actions of the same state, as choosing among candidates does;
    `ties_within_state` is the share of these comparisons with equal scores; `ece` has 15 bins of equal width; Brier
    scores are against the soft targets. `auroc_length_alone` and `auroc_teacher_alone` are those of two shortcuts: the
    length of the conversation, and the teacher as the actor (None if it always or never is).
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
    """Return the score of the good action minus that of the bad one for each such pair of a state, (comparisons,)."""
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


def hide_last_observation(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation with its last observation blanked, if it has one."""
    shown = [at for at, message in enumerate(messages) if message.role == "tool"]
    return tuple(replace(message, content="") if at in shown[-1:] else message for at, message in enumerate(messages))


def looks_like_teacher(
    features: NDArray[np.float64], examples: Sequence[VerifierExample]
) -> NDArray[np.float64] | None:
    """Return log-odds (examples,) that each action is the teacher's, by logistic regression on a verifier's features
    (examples, size), fitted on the other half of the tasks; None if a half has one class only."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    teacher = np.array([example.by_teacher for example in examples])
    number = {task: index for index, task in enumerate(sorted({example.task_id for example in examples}))}
    half = np.array([number[example.task_id] % 2 for example in examples])
    odds = np.empty(len(examples))
    for own in (0, 1):
        others = half != own
        if not 0 < teacher[others].sum() < others.sum():
            return None
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        odds[half == own] = classifier.fit(features[others], teacher[others]).decision_function(features[half == own])
    return odds


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Examples with logits before the temperature, (examples,), in order; with leakage controls also the logits with
    the last observation hidden, and the log-odds that each action is the teacher's."""

    examples: tuple[VerifierExample, ...]
    logits: NDArray[np.float64]
    hidden_logits: NDArray[np.float64] | None = None
    teacher_odds: NDArray[np.float64] | None = None

    def controls(self) -> dict[str, float | None]:
        """Return `auroc_last_observation_hidden` of the verifier, not retrained for it, and `auroc_who_acted` of
        recognizing the teacher's actions by its features; None without controls."""
        good = [example.good for example in self.examples]
        teacher = [example.by_teacher for example in self.examples]
        figures = {
            "auroc_last_observation_hidden": None if self.hidden_logits is None else auroc(self.hidden_logits, good),
            "auroc_who_acted": None if self.teacher_odds is None else auroc(self.teacher_odds, teacher),
        }
        return {name: None if value is None else round(value, 6) for name, value in figures.items()}


def score_held_out(
    model: VerifierModel, examples: Sequence[VerifierExample], encode: Encode, *, controls: bool
) -> HeldOutScores:
    """Return one verifier's scores; with `controls` the examples are read twice."""
    read = readings_of(model, examples, encode)
    scores = HeldOutScores(examples=tuple(examples), logits=read.logits)
    if not controls:
        return scores
    hidden = [replace(example, messages=hide_last_observation(example.messages)) for example in examples]
    return replace(
        scores,
        hidden_logits=readings_of(model, hidden, encode).logits,
        teacher_odds=looks_like_teacher(read.features, examples),
    )


def pooled(parts: Iterable[HeldOutScores]) -> HeldOutScores:
    """Return the scores of several verifiers as one, with the controls that all of them have."""
    every = list(parts)
    return HeldOutScores(
        examples=tuple(example for part in every for example in part.examples),
        logits=np.concatenate([part.logits for part in every]),
        hidden_logits=_joined([part.hidden_logits for part in every]),
        teacher_odds=_joined([part.teacher_odds for part in every]),
    )


def _joined(parts: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if len(present) == len(parts) else None
