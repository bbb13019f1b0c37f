"""Features that only models can give, held to what any model's must be: a row's entropies, its verifier's scores, how
far samples agree. Which of them are there follows from the settings; most are figures of one set of numbers, so they
bound each other; and what a verifier says of an action, it says again one step later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from r2v.evaluation.settings import EvaluateSettings
from r2v.router.case_support import NEIGHBOURS
from r2v.router.labels import FeatureRow

UNCERTAINTY = tuple(
    f"uncertainty.{name}"
    for name in (
        "entropy_first",
        "entropy_max",
        "entropy_mean",
        "entropy_nonfree_max",
        "entropy_nonfree_mean",
        "logprob_mean",
        "logprob_min",
        "logprob_sum",
    )
)
VERIFIER = tuple(
    f"verifier.{name}" for name in ("v_best", "v_gap12", "v_mean", "v_prev", "v_proposal", "v_spread", "v_std")
)
CASES = tuple(f"cases.{name}" for name in ("rank", "share", "similarity_max", "similarity_mean", "top_share"))
SAMPLES = ("samples.agreement", "samples.n_unique", "samples.support")
MODELS = ("uncertainty", "verifier", "samples", "cases")
"""The groups that only models, or an index of the teacher's steps, can give."""

_RANGES = {
    "uncertainty.entropy": (0.0, 20.0),
    "uncertainty.logprob": (-1e6, 0.0),
    "verifier.v_prev": (-1.0, 1.0),
    "cases.rank": (0.0, NEIGHBOURS),
}
"""By how a name begins: entropies of at most 4e8 words, in nats. All others are in [0, 1] but for the count of unique
samples."""
_NOT_ABOVE = (
    ("uncertainty.entropy_first", "uncertainty.entropy_max"),
    ("uncertainty.entropy_mean", "uncertainty.entropy_max"),
    ("uncertainty.entropy_nonfree_max", "uncertainty.entropy_max"),
    ("uncertainty.entropy_nonfree_mean", "uncertainty.entropy_nonfree_max"),
    ("uncertainty.logprob_min", "uncertainty.logprob_mean"),
    ("uncertainty.logprob_sum", "uncertainty.logprob_min"),
    ("verifier.v_mean", "verifier.v_best"),
    ("verifier.v_proposal", "verifier.v_best"),
    ("verifier.v_gap12", "verifier.v_spread"),
    ("verifier.v_std", "verifier.v_spread"),
    ("cases.share", "cases.top_share"),
    ("cases.similarity_mean", "cases.similarity_max"),
)
_ROUNDING = 2e-6
"""What two figures of 6 digits may differ by."""


def feature_problems(row: FeatureRow, settings: EvaluateSettings) -> Iterator[str]:
    """What no models can have said of one state."""
    known = {name: value for name, value in row.features.items() if name.partition(".")[0] in MODELS}
    sampled = settings.inference.num_candidates if "samples" in settings.router.features else 0
    expected = {*(VERIFIER if settings.asks_verifier else ()), *(SAMPLES if sampled else ())}
    if settings.router.reads_cases:
        expected |= set(CASES)
    if known.keys() & set(UNCERTAINTY):  # a reply without log-probabilities has none of them
        expected |= set(UNCERTAINTY)
    if odd := sorted(known.keys() ^ expected):
        yield f"{row.state_id}: {odd[0]} is {'no feature here' if odd[0] in known else 'missing'}"
        return
    for name, value in known.items():
        low, high = _range(name, sampled)
        if type(value) is not float or not low <= value <= high or round(value, 6) != value:
            yield f"{row.state_id}: {name} is {value}, it has 6 decimals in [{low:g}, {high:g}]"
    for low_name, high_name in _NOT_ABOVE:
        if low_name in known and known[low_name] > known[high_name] + _ROUNDING:
            yield f"{row.state_id}: {low_name} {known[low_name]} is above {high_name} {known[high_name]}"
    yield from (f"{row.state_id}: {problem}" for problem in _of_samples(known, sampled))


def _range(name: str, sampled: int) -> tuple[float, float]:
    if name == "samples.n_unique":
        return 1.0, float(sampled)
    return next((bounds for stem, bounds in _RANGES.items() if name.startswith(stem)), (0.0, 1.0))


def _of_samples(known: Mapping[str, float], sampled: int) -> Iterator[str]:
    """Figures of the proposal and its samples: without samples there is one score, of which all follow."""
    if not sampled:
        if "verifier.v_proposal" not in known:
            return
        score = known["verifier.v_proposal"]
        alone = {"v_best": score, "v_mean": score, "v_gap12": 0.0, "v_spread": 0.0, "v_std": 0.0}
        for name, value in alone.items():
            if known[f"verifier.{name}"] != value:
                yield f"verifier.{name} is {known[f'verifier.{name}']}, of one score {score} it is {value}"
        return
    for name in SAMPLES:
        count = known[name] * (1 if name.endswith("unique") else sampled)
        if not math.isclose(count, round(count), abs_tol=sampled * _ROUNDING):
            yield f"{name} is {known[name]}, which is no count of {sampled} samples"


def between_steps(before: FeatureRow, row: FeatureRow) -> Iterator[str]:
    """What a row says otherwise of the action one step before than the row of that step: v_prev is the change since."""
    if "verifier.v_prev" not in row.features:
        return
    change = row.features["verifier.v_proposal"] - before.features["verifier.v_proposal"]
    if abs(row.features["verifier.v_prev"] - change) > _ROUNDING:
        yield f"{row.state_id}: verifier.v_prev is {row.features['verifier.v_prev']}, the two steps make {change:.6f}"


def without_free_arguments(row: FeatureRow) -> Iterator[str]:
    """Where an action has no free arguments, leaving them out changes nothing."""
    for name in ("max", "mean"):
        every, nonfree = f"uncertainty.entropy_{name}", f"uncertainty.entropy_nonfree_{name}"
        if row.features.get(every) != row.features.get(nonfree):
            yield f"{row.state_id}: {nonfree} is not {every}, and the action has no free argument"
