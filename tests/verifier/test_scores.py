"""Scores of probabilities, compared with values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from r2v.verifier import scores


def test_ece_counts_a_probability_of_one():
    p, y = [0.1, 0.1, 0.9, 0.9, 1.0], [0, 0, 1, 1, 0]
    assert scores.ece(p, y, bins=5) == pytest.approx(0.2)
    assert scores.brier(p, y) == pytest.approx(0.208)
    assert scores.ece([1.0], [0]) == 1.0


def test_equal_mass_ece_keeps_ties_together_and_ignores_order():
    rng = np.random.default_rng(0)
    p = rng.choice([0.1, 0.4, 0.8], size=300)
    y = rng.random(300) < p
    turn = rng.permutation(300)
    by_hand = sum(abs(p[p == v].mean() - y[p == v].mean()) * (p == v).mean() for v in (0.1, 0.4, 0.8))
    assert scores.ece(p, y, bins=10, equal_mass=True) == pytest.approx(by_hand)
    assert scores.ece(p[turn], y[turn], bins=10, equal_mass=True) == pytest.approx(by_hand)


def test_bins_of_equal_width_are_not_bins_of_equal_mass():
    p, y = [0.1, 0.2], [1, 0]
    assert scores.ece(p, y, bins=2) == pytest.approx(0.35), "both stand below a half"
    assert scores.ece(p, y, bins=2, equal_mass=True) == pytest.approx(0.55), "one on either side of the median"


def test_there_are_fifteen_bins_unless_told():
    """1/15 opens the second of 15 bins: the outcomes on either side of it cancel in 14 and in 16."""
    p, y = [1 / 15, 1 / 15 - 1e-3], [1, 0]
    assert scores.ece(p, y) == pytest.approx(scores.ece(p, y, bins=15)) == pytest.approx((14 / 15 + 1 / 15 - 1e-3) / 2)
    assert scores.ece(p, y, bins=14) != pytest.approx(scores.ece(p, y))
    p = [2 / 15, 2 / 15 - 1e-3]
    assert scores.ece(p, y, bins=16) != pytest.approx(scores.ece(p, y))


def test_a_probability_on_an_edge_stands_in_the_bin_that_it_opens():
    assert scores.ece([0.5, 0.4], [1, 0], bins=2) == pytest.approx((0.5 + 0.4) / 2)
    assert scores.ece([0.5, 0.9], [1, 0], bins=2) == pytest.approx(0.2)
    assert scores.ece([1.0, 0.99], [0, 1], bins=15) == pytest.approx(0.495), "1 has no bin of its own"


def test_auroc_and_average_precision():
    assert scores.auroc([0.9, 0.4, 0.6, 0.2], [1, 1, 0, 0]) == 0.75
    assert scores.auroc([0.3] * 4, [1, 0, 1, 0]) == 0.5
    assert scores.auroc([0.3, 0.2], [1, 1]) is None and scores.auroc([0.3, 0.2], [0, 0]) is None
    assert scores.average_precision([0.9, 0.4, 0.6, 0.2], [1, 1, 0, 0]) == pytest.approx((1 + 2 / 3) / 2)
    assert scores.average_precision([0.3] * 4, [1, 0, 0, 0]) == 0.25
    assert scores.average_precision([0.3], [0]) is None
