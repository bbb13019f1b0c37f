"""Which score acts at an operating point, from figures that are known."""

from __future__ import annotations

import math

import pytest

from r2v.config.methods import METHODS, OURS
from r2v.router.choice import ALTERNATIVES, MARGIN, PlacedScore, ScoreChoice, available, paired
from r2v.router.thresholds import OperatingPoint

OWN = PlacedScore(tau=0.4, outcome=OperatingPoint(llm_call_rate=0.2, success=0.6, cost=0.01))


def compared(difference: float, error: float) -> PlacedScore:
    outcome = OperatingPoint(llm_call_rate=0.2, success=0.6 + difference, cost=0.01)
    return PlacedScore(tau=0.5, outcome=outcome, difference=difference, standard_error=error)


def test_another_score_acts_only_where_it_is_ahead_by_the_margin_and_a_standard_error() -> None:
    for difference, error, score in (
        (0.0, 0.0, OURS),
        (MARGIN, 0.0, OURS),
        (MARGIN + 0.001, 0.0, "entropy_router"),
        (0.08, 0.08, OURS),
        (0.08, 0.07, "entropy_router"),
        (-0.5, 0.0, OURS),
    ):
        choice = ScoreChoice.of(OWN, {"entropy_router": compared(difference, error)}, 60)
        assert choice.score == score and choice.acting.tau == (0.4 if score == OURS else 0.5)


def test_the_farthest_ahead_acts_and_the_first_of_equals() -> None:
    figures = {name: compared(0.1, 0.01) for name in ALTERNATIVES}
    assert ScoreChoice.of(OWN, figures, 60).score == ALTERNATIVES[0]
    figures["sequence_logprob_router"] = compared(0.11, 0.01)
    choice = ScoreChoice.of(OWN, figures, 60)
    assert choice.score == "sequence_logprob_router"
    assert choice.text().startswith("sequence_logprob_router acts: on 60 calibration tasks r2v 0.600, disagreement")
    assert ScoreChoice.of(OWN, {}, 60).score == OURS


def test_the_standard_error_is_of_the_difference_paired_by_task() -> None:
    own = {"a": 0.0, "b": 1.0, "c": 0.5, "lost": 1.0}
    other = {"a": 1.0, "b": 1.0, "c": 1.0, "elsewhere": 0.0}
    mean, error = paired(own, other)
    assert mean == pytest.approx(0.5) and error == pytest.approx(0.5 / math.sqrt(3))  # of 1, 0 and .5
    assert paired({"a": 0.0}, {"a": 1.0}) == (0.0, math.inf), "one task has no standard error"


def test_a_score_whose_signal_is_absent_is_no_alternative() -> None:
    assert set(ALTERNATIVES) <= METHODS.keys()
    assert available(["page.obs_changed"]) == ("disagreement_router",)
    assert available(["uncertainty.entropy_max", "uncertainty.logprob_sum"]) == ALTERNATIVES
