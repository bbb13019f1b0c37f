"""Ranking: what choosing the verifier's favourite of K sampled actions is worth, by executed values.

    ranking(states)["best_of_k_less_random"]    # success gained over one of the K drawn at random

Beside it stands what costs nothing, the sample that the policy itself finds most likely, and what cannot be beaten,
the best of the K by its executed value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean


@dataclass(frozen=True, kw_only=True)
class SampledAction:
    """One of a state's K samples: the verifier's score, the policy's log-probability of the whole action in nats, and
    the share of its executed continuations that succeed."""

    score: float
    log_prob: float
    value: float


def ranking(states: Iterable[Sequence[SampledAction]]) -> dict[str, float | None]:
    """Figures over states of K samples each; None where no state's samples differ in value.

    `within_state_*` is how often the better of two samples of a state ranks higher, ties counting a half, and
    `ties_within_state` how often the verifier scores both the same. `random_of_k` is the mean value of all samples;
    `*_less_random` is what choosing the sample with the highest score (best), log-probability (most likely) or value
    (oracle, the most there is) gains over it, equal ones counting as their mean.
    """
    choices = [samples for samples in states if len({one.value for one in samples}) > 1]
    pairs = [
        (better, worse)
        for samples in choices
        for better, worse in permutations(samples, 2)
        if better.value > worse.value
    ]

    def mean(values: Iterable[float]) -> float | None:
        found = list(values)
        return round(fmean(found), 6) if found else None

    def ranked(key: Callable[[SampledAction], float]) -> float | None:
        return mean(0.5 * (1 + (key(better) > key(worse)) - (key(better) < key(worse))) for better, worse in pairs)

    random = [fmean(one.value for one in samples) for samples in choices]

    def gain(key: Callable[[SampledAction], float]) -> float | None:
        return mean(_favourite(samples, key) - drawn for samples, drawn in zip(choices, random, strict=True))

    return {
        "states_with_a_choice": len(choices),
        "pairs": len(pairs),
        "within_state_verifier": ranked(lambda one: one.score),
        "within_state_log_prob": ranked(lambda one: one.log_prob),
        "ties_within_state": mean(float(better.score == worse.score) for better, worse in pairs),
        "random_of_k": mean(random),
        "best_of_k_less_random": gain(lambda one: one.score),
        "most_likely_of_k_less_random": gain(lambda one: one.log_prob),
        "oracle_of_k_less_random": gain(lambda one: one.value),
    }


def _favourite(samples: Sequence[SampledAction], key: Callable[[SampledAction], float]) -> float:
    """The mean value of the samples with the highest key."""
    top = max(map(key, samples))
    return fmean(one.value for one in samples if key(one) == top)
