"""The power of a comparison, and a judge's corrected rate, against known answers."""

from __future__ import annotations

import pytest

from r2v.game.statistics.power import detectable_difference, rogan_gladen


def test_interactions_needed_for_a_tenth_and_for_a_quarter() -> None:
    assert detectable_difference(392) == pytest.approx(0.10, abs=1e-3)
    assert detectable_difference(63) == pytest.approx(0.25, abs=1e-3)


def test_the_detectable_difference_falls_with_the_root_of_the_interactions() -> None:
    assert detectable_difference(4000) == pytest.approx(detectable_difference(1000) / 2)
    num_needed = 2 * 0.25 * ((1.959964 + 0.841621) / detectable_difference(1000)) ** 2
    assert round(num_needed) == 1000


def test_rogan_gladen() -> None:
    assert rogan_gladen(0.3, 0.9, 0.95) == pytest.approx((0.3 + 0.95 - 1) / (0.9 + 0.95 - 1))
    assert rogan_gladen(0.3, 1.0, 1.0) == pytest.approx(0.3)
    assert rogan_gladen(0.01, 0.9, 0.95) == 0.0, "not below nothing"
    assert rogan_gladen(0.3, 0.5, 0.5) is None
