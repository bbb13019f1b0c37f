"""Candidates depend on the policy that continues after them."""

from __future__ import annotations

import pytest

from r2v.config import load
from r2v.stages.generate_candidates import CandidatesSettings, SampledAction, ranking


@pytest.mark.parametrize(
    ("provider", "asked", "found"),
    [
        ("scripted", "auto", "teacher"),
        ("scripted", "slm", "slm"),
        ("openai", "auto", "slm"),
        ("openai", "teacher", "teacher"),
    ],
)
def test_a_paid_teacher_plays_on_only_where_it_is_named(provider: str, asked: str, found: str) -> None:
    overrides = [f"teacher.provider={provider}", f"candidates.continuation={asked}", "candidates.with_teacher=false"]
    settings = CandidatesSettings.of(load(None, overrides))
    assert (settings.candidates.continuation, settings.asks_teacher) == (found, found == "teacher")


def samples(*scores_log_probs_values: tuple[float, float, float]) -> list[SampledAction]:
    return [SampledAction(score=s, log_prob=p, value=v) for s, p, v in scores_log_probs_values]


def test_figures_of_two_states_by_hand() -> None:
    """The verifier finds the good one of the first state and ties in the second; the policy is wrong, then right."""
    figures = ranking(
        [
            samples((0.9, -3.0, 1.0), (0.2, -1.0, 0.0), (0.1, -2.0, 0.0)),
            samples((0.5, -1.0, 1.0), (0.5, -2.0, 0.0)),
        ]
    )
    assert figures == {
        "states_with_a_choice": 2,
        "pairs": 3,
        "within_state_verifier": pytest.approx((1 + 1 + 0.5) / 3, abs=1e-6),
        "within_state_log_prob": pytest.approx(1 / 3, abs=1e-6),
        "ties_within_state": pytest.approx(1 / 3, abs=1e-6),
        "random_of_k": pytest.approx((1 / 3 + 1 / 2) / 2, abs=1e-6),
        "best_of_k_less_random": pytest.approx((2 / 3 + 0) / 2, abs=1e-6),
        "most_likely_of_k_less_random": pytest.approx((-1 / 3 + 1 / 2) / 2, abs=1e-6),
        "oracle_of_k_less_random": pytest.approx((2 / 3 + 1 / 2) / 2, abs=1e-6),
    }


def test_a_state_whose_samples_are_worth_the_same_is_no_choice() -> None:
    figures = ranking([samples((0.9, -1.0, 1.0), (0.1, -2.0, 1.0)), [], samples((0.3, -1.0, 0.0))])
    assert figures.pop("states_with_a_choice") == figures.pop("pairs") == 0
    assert set(figures.values()) == {None}


def test_scores_that_say_the_value_reach_the_oracle_and_constant_ones_the_random_draw() -> None:
    values = [(0.0, 1.0, 0.5), (1.0, 0.0, 0.0)]
    knows = ranking(samples(*((value, 0.0, value) for value in own)) for own in values)
    assert knows["best_of_k_less_random"] == knows["oracle_of_k_less_random"] == pytest.approx(0.583333)
    assert knows["within_state_verifier"] == 1.0 and knows["within_state_log_prob"] == 0.5
    assert knows["most_likely_of_k_less_random"] == 0.0
