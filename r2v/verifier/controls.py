"""Leakage controls of a verifier: what it would score well by without judging the action.

    hidden = hide_last_observation(example.messages)    # then score it: how much does what is seen matter?
    teacher = looks_like_teacher(features, examples)    # can its features tell who acted?

Where an observation names the outcome, a score may be read off it: hiding the last one shows how much of the AUROC
rests there. A verifier whose features tell the teacher's actions from others' may score their style instead of what
they do (arXiv 2504.07164).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from r2v.verifier.labels import VerifierExample
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
