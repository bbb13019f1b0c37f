"""Held-out scores: what verifiers say of examples that they were not trained on.

    scores = score_held_out(verifier, of_calibration_tasks, encode, controls=True)
    scores = pooled(score_held_out(fold, of_its_tasks, encode, controls=True) for fold, of_its_tasks in folds)

A temperature is fitted to them (`r2v.verifier.calibrate`) and the report is about them; a verifier's scores of what it
has learnt say nothing of what it is worth.

The controls show what a verifier would score well by without judging the action. Where an observation names the
outcome, a score may be read off it: hiding the last one shows how much of the AUROC rests there. A verifier whose
features tell the teacher's actions from others' may score their style instead of what they do (arXiv 2504.07164).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from r2v.verifier.calibrate import readings_of
from r2v.verifier.labels import VerifierExample
from r2v.verifier.model import Encode, VerifierModel
from r2v.verifier.scores import auroc
from r2v.wire.message import Message


def hide_last_observation(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with what the world showed last blanked; as it is where the world has shown nothing."""
    shown = [at for at, message in enumerate(messages) if message.role == "tool"]
    return tuple(replace(message, content="") if at in shown[-1:] else message for at, message in enumerate(messages))


def looks_like_teacher(
    features: NDArray[np.float64], examples: Sequence[VerifierExample]
) -> NDArray[np.float64] | None:
    """The log-odds, (examples,), that a logistic regression on a verifier's features (examples, size) gives to each
    action's being the teacher's. It learns from the other half of the tasks; None where a half holds one kind only."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    teacher = np.array([example.by_teacher for example in examples])
    places = {task: place for place, task in enumerate(sorted({example.task_id for example in examples}))}
    half = np.array([places[example.task_id] % 2 for example in examples])
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
    """Examples, and in their order logits before the temperature, (examples,); with leakage controls also the logits
    with the last observation hidden, and how much each action looks like the teacher's."""

    examples: tuple[VerifierExample, ...]
    logits: NDArray[np.float64]
    hidden_logits: NDArray[np.float64] | None = None
    teacher_odds: NDArray[np.float64] | None = None

    def controls(self) -> dict[str, float | None]:
        """`auroc_last_observation_hidden` of the verifier as it is, which was never trained so, and
        `auroc_who_acted`, of telling the teacher's actions by its features; None where there is none."""
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
    """One verifier's scores; with `controls` the examples are read twice."""
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
    """The scores of several verifiers as one; of a control that one of them lacks there is none."""
    every = list(parts)
    return HeldOutScores(
        examples=tuple(example for part in every for example in part.examples),
        logits=np.concatenate([part.logits for part in every]),
        hidden_logits=_joined([part.hidden_logits for part in every]),
        teacher_odds=_joined([part.teacher_odds for part in every]),
    )


def _joined(parts: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None
