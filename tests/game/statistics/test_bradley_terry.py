"""The logistic model recovers the parameters of its data, and agrees with closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from r2v.game.play.records import InteractionOutcome
from r2v.game.statistics.bradley_terry import PRIOR_STD, fit_logistic, fit_strengths
from r2v.randomness import generator

from ..sample_game import pairing, side

LEAK = {"a": 1.2, "b": 0.0, "c": -1.2}
EXTRACTION = {"a": -0.8, "b": 0.0, "c": 0.8}
OPENER = 0.7


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def simulated(number: int) -> list[InteractionOutcome]:
    draw = generator("strength", number)

    def told(own: str, other: str, opened: bool) -> int | None:
        score = -0.3 + LEAK[own] + EXTRACTION[other] + OPENER * (opened - 0.5)
        return 1 if draw.random() < 1 / (1 + math.exp(-score)) else None

    pairs = [(a, b) for a in LEAK for b in LEAK]
    return [
        pairing(k, side(a, at=told(a, b, True)), side(b, at=told(b, a, False), opened=False))
        for k in range(number)
        for a, b in [pairs[k % len(pairs)]]
    ]


def test_the_model_finds_what_made_the_data() -> None:
    found = fit_strengths(simulated(9000))
    assert found is not None
    rows = {row["name"]: row for row in found["models"]}
    assert found["opener"]["value"] == pytest.approx(OPENER, abs=0.1)
    for name in LEAK:
        for figure, truth in (("leak", LEAK), ("extraction", EXTRACTION)):
            value = rows[name][figure]["value"] - np.mean([rows[other][figure]["value"] for other in LEAK])
            assert value == pytest.approx(truth[name], abs=0.12), (name, figure)
            low, high = rows[name][figure]["interval"]
            assert low < rows[name][figure]["value"] < high


def test_one_model_against_itself_has_a_closed_form() -> None:
    """Opener tells in 30 of 40, follower in 10 of 40: the position is worth logit(3/4) - logit(1/4)."""
    game = [
        pairing(k, side("m", at=1 if k < 30 else None), side("m", at=1 if k % 4 == 0 else None, opened=False))
        for k in range(40)
    ]
    found = fit_strengths(game)
    assert found is not None
    assert found["opener"]["value"] == pytest.approx(logit(0.75) - logit(0.25), abs=1e-4)


def test_the_fit_is_where_the_penalised_slope_is_zero() -> None:
    rng = np.random.default_rng(3)
    design = np.column_stack([np.ones(60), rng.choice([-0.5, 0.5], 60), rng.integers(0, 2, (60, 4))]).astype(float)
    trials = rng.integers(0, 5, 60).astype(float)
    told = np.floor(trials * rng.random(60))
    beta = fit_logistic(design, told, trials)
    slope = design.T @ (told - trials / (1 + np.exp(-design @ beta)))
    assert slope[2:] == pytest.approx(beta[2:] / PRIOR_STD**2, abs=1e-6)
    assert slope[:2] == pytest.approx(0, abs=1e-4)


def test_a_model_that_never_told_stays_finite() -> None:
    found = fit_strengths([pairing(k, side("mute"), side("leaky", at=1, opened=False)) for k in range(50)])
    assert found is not None
    rows = {row["name"]: row["leak"]["value"] for row in found["models"]}
    assert -15 < rows["mute"] < 0 < rows["leaky"] < 15


def test_nothing_to_fit() -> None:
    assert fit_strengths([]) is None
    assert fit_strengths([pairing(0, side("a"), side("b"))]) is None
    assert fit_strengths([pairing(0, side("a", at=1), side("b", at=2))]) is None
