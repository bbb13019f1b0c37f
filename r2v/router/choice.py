"""Choice of a score: which of the scores at hand r2v decides by at an operating point.

r2v's own score, the blend, stands unless executed calibration tasks prefer another one at the same dollars, by more
than `MARGIN` and by more than one standard error of the paired difference over tasks. Noise alone then seldom moves it,
and a gain model that learnt from few positives never costs more than the margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from r2v.config.methods import OURS
from r2v.router.baselines import SIGNALS
from r2v.router.thresholds import OperatingPoint

ALTERNATIVES = ("disagreement_router", "entropy_router", "sequence_logprob_router")
"""Methods whose scores r2v may decide by, beside its own."""
MARGIN = 0.03
"""Success by which another score has to be ahead."""
FEWEST_TASKS = 60
"""Calibration tasks below which nothing is chosen."""


@dataclass(frozen=True, kw_only=True)
class PlacedScore:
    """A score placed at an operating point by playing calibration tasks; others than r2v's own at its dollars."""

    tau: float
    outcome: OperatingPoint
    difference: float = 0.0
    """Its success less that of r2v's own score."""
    standard_error: float = 0.0
    """Of that difference, paired by task."""

    @property
    def preferred(self) -> bool:
        """True if it is ahead by more than the margin and one standard error."""
        return self.difference > max(MARGIN, self.standard_error)


@dataclass(frozen=True, kw_only=True)
class ScoreChoice:
    """The score that acts at an operating point, and the figures that it was chosen by."""

    score: str
    """The method whose score acts."""
    num_tasks: int
    """Calibration tasks."""
    own: PlacedScore
    compared: dict[str, PlacedScore]
    """By method."""

    @classmethod
    def of(cls, own: PlacedScore, compared: Mapping[str, PlacedScore], num_tasks: int) -> ScoreChoice:
        """The preferred score of the largest difference, the first of equals; r2v's own if none is preferred."""
        preferred = [name for name, one in compared.items() if one.preferred]
        score = max(preferred, key=lambda name: compared[name].difference, default=OURS)
        return cls(score=score, num_tasks=num_tasks, own=own, compared=dict(compared))

    @property
    def acting(self) -> PlacedScore:
        """The placed score that acts."""
        return self.own if self.score == OURS else self.compared[self.score]

    def text(self) -> str:
        """The choice in words: "disagreement_router acts: .750 for .667 (+.083, standard error .041) on 60 tasks"."""
        rivals = ", ".join(
            f"{name} {one.outcome.success:.3f} ({one.difference:+.3f}, standard error {one.standard_error:.3f})"
            for name, one in self.compared.items()
        )
        return f"{self.score} acts: on {self.num_tasks} calibration tasks r2v {self.own.outcome.success:.3f}, {rivals}"


def available(features: Iterable[str]) -> tuple[str, ...]:
    """The alternatives whose signals are among these features of a step."""
    there = set(features)
    return tuple(name for name in ALTERNATIVES if SIGNALS.get(name) in (None, *there))


def paired(own: Mapping[str, float], other: Mapping[str, float]) -> tuple[float, float]:
    """(mean, standard error) of the difference other - own over the tasks that both have, by task."""
    differences = [other[task] - own[task] for task in own if task in other]
    if len(differences) < 2:
        return 0.0, math.inf
    return fmean(differences), stdev(differences) / math.sqrt(len(differences))
