"""Kaplan-Meier and log-rank, compared with a calculation by hand."""

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
    curve = kaplan_meier(sides)
    assert [(point["message"], point["at_risk"], point["revealed"]) for point in curve] == [
        (0, 6, 0),
        (1, 6, 2),
        (3, 3, 1),
    ]
    assert [point["kept"] for point in curve] == pytest.approx([1, 4 / 6, 4 / 6 * 2 / 3])
    assert [point["error"] for point in curve] == pytest.approx(
        [0, 4 / 6 * math.sqrt(2 / (6 * 4)), 4 / 9 * math.sqrt(2 / (6 * 4) + 1 / (3 * 2))]
    )


REMISSION = [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35]
"""Weeks of remission under 6-MP (Freireich et al. 1963); negative ones are censored."""
PUBLISHED = {  # week -> (survival, Greenwood's standard error), as in every textbook since Cox and Oakes
    6: (0.857, 0.0764),
    7: (0.807, 0.0869),
    10: (0.753, 0.0963),
    13: (0.690, 0.1068),
    16: (0.627, 0.1141),
    22: (0.538, 0.1282),
    23: (0.448, 0.1346),
}


def test_greenwood_against_a_published_table() -> None:
    """The interval is taken on the scale of log(-log S), as of survival packages' conf.type "log-log"."""
    sides = [side("m", at=week, num_messages=week) if week > 0 else side("m", num_messages=-week) for week in REMISSION]
    curve = kaplan_meier(sides)[1:]
    assert {point["message"]: (round(point["kept"], 3), round(point["error"], 4)) for point in curve} == PUBLISHED
    for point in curve:
        half = 1.959964 * point["error"] / point["kept"] / abs(math.log(point["kept"]))
        assert point["interval"] == pytest.approx(
            [point["kept"] ** math.exp(sign * half) for sign in (1, -1)], abs=1e-6
        )


def test_where_everybody_or_too_few_gave_it_away_there_is_no_band() -> None:
    all_gone = kaplan_meier([side("m", at=1)] * 6)[-1]
    assert (all_gone["kept"], all_gone["error"], all_gone["interval"]) == (0.0, None, None)
    assert kaplan_meier([side("m", at=1), side("m"), side("m"), side("m")])[-1]["interval"] is None


def test_the_median_is_where_exactly_half_are_left_however_that_is_rounded() -> None:
    """23/24 * 22/23 * ... * 12/13 is an ulp above 1/2 as a product of floats."""
    players = [side("a", at=message, num_messages=24) for message in range(1, 13)] + [side("a", num_messages=24)] * 12
    (model, _) = time_to_reveal([pairing(k, player, side("b")) for k, player in enumerate(players)])["models"]
    assert (model["name"], model["median"]) == ("a", 12)


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
