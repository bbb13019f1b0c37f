"""Kaplan-Meier and log-rank against a calculation by hand."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from r2v.game.statistics.survival import kaplan_meier, logrank_p, time_to_reveal

from ..sample_game import pairing, side


def test_kaplan_meier_by_hand() -> None:
    """Fallen at 1, 1, 3; kept to the end after 2, 3, 3 messages."""
    sides = [
        side("m", at=1),
        side("m", at=1),
        side("m", num_messages=2),
        side("m", at=3, num_messages=3),
        side("m", num_messages=3),
        side("m", num_messages=3),
    ]
    assert kaplan_meier(sides) == [
        {"message": 0, "at_risk": 6, "revealed": 0, "kept": 1.0},
        {"message": 1, "at_risk": 6, "revealed": 2, "kept": pytest.approx(4 / 6)},
        {"message": 3, "at_risk": 3, "revealed": 1, "kept": pytest.approx(4 / 6 * 2 / 3)},
    ]


def test_logrank_by_hand() -> None:
    """Falls at 1, 2 against 3, 4: expected 1/2 + 1/3 of the first group's two, variance 1/4 + 2/9."""
    p = logrank_p([side("a", at=1), side("a", at=2)], [side("b", at=3), side("b", at=4)])
    z = (2 - 5 / 6) / math.sqrt(1 / 4 + 2 / 9)
    assert p == pytest.approx(2 * (1 - NormalDist().cdf(z)), abs=1e-9)


def test_logrank_where_nothing_happens() -> None:
    assert logrank_p([side("a")], [side("b")]) == 1.0


def test_models_medians_and_holm() -> None:
    game = [pairing(k, side("a", at=1), side("b", num_messages=4)) for k in range(6)]
    game += [pairing(10 + k, side("c", at=3), side("b", num_messages=4)) for k in range(6)]
    found = time_to_reveal(game)
    assert {row["name"]: row["median"] for row in found["models"]} == {"a": 1, "b": None, "c": 3}
    tests = {(row["a"], row["b"]): row for row in found["tests"]}
    assert set(tests) == {("a", "b"), ("a", "c"), ("b", "c")}
    assert all(row["p_holm"] >= row["p"] for row in tests.values()) and tests["a", "c"]["p"] < 0.01
