"""The power of a comparison, and a judge's corrected rate, compared with known answers."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from r2v.evaluation.measures.statistics import sign_flip_p
from r2v.game.statistics.power import DesignPower, detectable_difference, rogan_gladen


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


def test_power_against_a_simulation_of_the_analysis_itself() -> None:
    """Replicates are drawn, their differences formed, their signs flipped: as often as the formula says."""
    rng, trials = np.random.default_rng(20), 300
    for replicates, observations, rate, difference in ((30, 2, 0.3, 0.25), (12, 4, 0.5, -0.3), (60, 1, 0.1, 0.15)):
        design = DesignPower(observations=observations, rate=rate)
        first, second = (rng.binomial(observations, p, (trials, replicates)) for p in (rate, rate + difference))
        hits = sum(sign_flip_p(row, 999) <= 0.05 for row in (second - first) / observations)
        expected = design.power(replicates, difference)
        assert hits / trials == pytest.approx(expected, abs=3.3 * math.sqrt(0.25 / trials)), (replicates, expected)


def test_against_the_textbooks_two_proportions() -> None:
    """Fleiss: with continuity correction 103 per group show .3 against .5 with 80 % power, at the level of .05."""
    design = DesignPower(observations=1, rate=0.3)
    assert design.replicates_for(0.2) == pytest.approx(103, abs=3)
    error = math.sqrt((0.3 * 0.7 + 0.32 * 0.68) / 50_000)
    normal = NormalDist().cdf((0.01 * 2 - 1 / 50_000) / error - NormalDist().inv_cdf(0.975))
    assert design.power(50_000, 0.02) == pytest.approx(normal, abs=1e-4)
    few = math.sqrt((0.3 * 0.7 + 0.31 * 0.69) / 20_000)
    normal = NormalDist().cdf((0.01 - 1 / 20_000) / few - NormalDist().inv_cdf(0.975))
    assert design.power(20_000, 0.01) == pytest.approx(normal, abs=1e-3) and 0.3 < normal < 0.7


def test_what_makes_a_design_weaker_and_what_it_detects() -> None:
    plain = DesignPower(observations=4, rate=0.3)
    assert plain.power(40, 0) == pytest.approx(0.05)
    assert plain.power(40, 1e-9) == pytest.approx(0.05, abs=1e-6)
    assert DesignPower(observations=4, rate=0.3, contrasts=3).power(40, 0.15) < plain.power(40, 0.15)
    alike = DesignPower(observations=4, rate=0.3, icc=1.0)
    assert alike.power(4000, 0.03) == pytest.approx(DesignPower(observations=1, rate=0.3).power(4000, 0.03), abs=0.01)
    needed = plain.replicates_for(0.15)
    assert needed is not None and plain.power(needed, 0.15) >= 0.8 > plain.power(needed - 1, 0.15)
    least = plain.detectable(needed)
    assert least is not None and 0.14 < least <= 0.15 + 1e-9
    assert plain.power(needed, least) == pytest.approx(0.8, abs=1e-6)
    assert DesignPower(observations=4, rate=0.9).detectable(40) == pytest.approx(
        DesignPower(observations=4, rate=0.1).detectable(40)
    )


def test_flipping_the_signs_of_few_replicates_shows_nothing() -> None:
    """2^(1 - 5) = .0625: five replicates that all agree are no evidence at the level of .05."""
    design = DesignPower(observations=100, rate=0.1)
    assert [design.power(replicates, 0.8) > 0.9 for replicates in (2, 5, 6)] == [False, False, True]
    assert design.detectable(5) is None
    with pytest.raises(ValueError, match="no rate"):
        design.power(10, 0.95)
