"""Scores of the routers that R2V is compared with, from the same features and under the same decision rule.

Each is a score in [0, 1), most of them a monotone map of one published signal, so that a threshold on the score is one
on the signal. `recorded_score` caps it below 1, so tau = 1 still means never.

- random_router: a uniform keyed by (seed, task, step), so equal thresholds make equal decisions.
- task_router: a uniform keyed by (seed, task), the same at every step: whole tasks are handed to the LLM. At equal
  cost it is expected on the line between the small policy alone and the LLM alone.
- entropy_router: the largest token entropy H of the proposal, as 1 - exp(-H).
- entropy_nonfree_router: the same over tokens that no free argument covers.
- verifier_router: 1 - the verifier's score of the proposal.
- logprob_router: 1 - exp of the proposal's mean token log-probability (P(True)-like; UCCI, arXiv 2605.18796, calls the
  threshold on such a signal calibrated where it is placed on held-out tasks, as all of them are here).
- sequence_logprob_router: 1 - exp of the same summed over tokens, the proposal's probability.
- mean_entropy_router: the mean token entropy, which ReDAct (arXiv 2604.07036) defers by, as 1 - exp(-H).
- periodic_router: every n-th step. The van der Corput sequence of the step, so that any threshold spreads its calls
  evenly.
- first_steps_router: the first n steps; once the small policy acts, it acts to the end.
- disagreement_router: a model trained to tell where the expert would act differently (free arguments aside).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from r2v.errors import InputError, UsageError, nearest
from r2v.randomness import uniform
from r2v.router.models import RouterModel

Score = Callable[[Mapping[str, float], int, str, int], float]
"""(features, seed, task_id, step) -> a score in [0, 1]; the LLM acts where it reaches the threshold."""


def score_function(method: str, models: Mapping[str, RouterModel]) -> Score:
    """Return the score that a routed method decides by. `models`: the trained models by method (r2v,
    disagreement_router). Raises UsageError for a method without a score."""
    if method in models:
        return _learned(models[method])
    if method not in FIXED_SCORES:
        hint = nearest(method, [*FIXED_SCORES, *models])
        raise UsageError(f"evaluation.methods: {method} has no router score; {hint}")
    return FIXED_SCORES[method]


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """Model calls of a score at a step, billed in addition to the small policy's own reply."""

    verifier: bool = False
    """The verifier scores the proposal."""
    previous: bool = False
    """The verifier scores the action played one step before."""
    samples: bool = False
    """The small policy draws further samples; the verifier scores each of them, where it is asked."""


ALL = Instruments(verifier=True, previous=True, samples=True)


def instruments(method: str, features: Sequence[str]) -> Instruments:
    """Return the model calls of a routed method's score; `features`: the feature groups of the trained routers."""
    if method in FIXED_SCORES:
        return Instruments(verifier=method == "verifier_router")
    asks = "verifier" in features
    return Instruments(verifier=asks, previous=asks, samples="samples" in features)


def _learned(model: RouterModel) -> Score:
    return lambda features, seed, task_id, step: model.predict(features)


def _random(features: Mapping[str, float], seed: int, task_id: str, step: int) -> float:
    return uniform(seed, task_id, step, "router")


def _random_task(features: Mapping[str, float], seed: int, task_id: str, step: int) -> float:
    return uniform(seed, task_id, "task router")


def _periodic(features: Mapping[str, float], seed: int, task_id: str, step: int) -> float:
    """Return 1 minus the van der Corput sequence of the step (0, 1/2, 1/4, 3/4, 1/8, ...), scaled below 1."""
    digits, score = step, 0.0
    weight = 0.5
    while digits:
        digits, bit = divmod(digits, 2)
        score, weight = score + bit * weight, weight / 2
    return round((1 - score) * (1 - 2**-10), 6)


def _first_steps(features: Mapping[str, float], seed: int, task_id: str, step: int) -> float:
    return round(1 / (step + 2), 6)


def _unlikely(name: str) -> Score:
    return lambda features, seed, task_id, step: round(1 - math.exp(_value(features, name)), 6)


def _entropy(name: str) -> Score:
    return lambda features, seed, task_id, step: round(1 - math.exp(-_value(features, name)), 6)


def _doubt(features: Mapping[str, float], seed: int, task_id: str, step: int) -> float:
    return round(1 - _value(features, SIGNALS["verifier_router"]), 6)


def _value(features: Mapping[str, float], name: str) -> float:
    if name not in features:
        raise InputError(f"router: feature {name} is absent; its signal was not there at this step")
    return features[name]


SIGNALS = {
    "entropy_router": "uncertainty.entropy_max",
    "entropy_nonfree_router": "uncertainty.entropy_nonfree_max",
    "verifier_router": "verifier.v_proposal",
    "logprob_router": "uncertainty.logprob_mean",
    "sequence_logprob_router": "uncertainty.logprob_sum",
    "mean_entropy_router": "uncertainty.entropy_mean",
}
"""Methods whose score is a function of one feature."""
FIXED_SCORES: dict[str, Score] = {
    "random_router": _random,
    "task_router": _random_task,
    "entropy_router": _entropy(SIGNALS["entropy_router"]),
    "entropy_nonfree_router": _entropy(SIGNALS["entropy_nonfree_router"]),
    "verifier_router": _doubt,
    "logprob_router": _unlikely(SIGNALS["logprob_router"]),
    "sequence_logprob_router": _unlikely(SIGNALS["sequence_logprob_router"]),
    "mean_entropy_router": _entropy(SIGNALS["mean_entropy_router"]),
    "periodic_router": _periodic,
    "first_steps_router": _first_steps,
}
"""Scores without a trained model."""
RECOMPUTED = ("random_router", "task_router", "periodic_router", "first_steps_router")
"""Routers that read no feature: their scores follow from seed, task and step, and an audit computes them again. Of all
others it takes the recorded score."""
