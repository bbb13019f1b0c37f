from __future__ import annotations

import numpy as np
import pytest

from r2v.evaluation.frontier import Curve


def one(x: float) -> np.ndarray:
    return np.array([x])


def curve(points, slm=(1.0, 0.4), llm=(11.0, 0.9)) -> Curve:
    cost, success = (np.array([list(axis)]) for axis in zip(*points, strict=True))
    return Curve.through(cost, success, (one(slm[0]), one(slm[1])), (one(llm[0]), one(llm[1])))


def test_a_straight_frontier_has_area_one_half():
    line = curve([(3.5, 0.525), (6.0, 0.65)])
    assert line.apgr() == pytest.approx([0.5])
    assert line.cpt(0.5) == pytest.approx(0.5)
    assert line.cpt(0.8) == pytest.approx(0.8)


def test_one_point_by_hand_and_order_of_points_is_nothing():
    """(.25, .8): .25 * .8 / 2 + .75 * 1.8 / 2 = .775; half the gap at .15625."""
    bent = curve([(3.5, 0.8)])
    assert bent.apgr() == pytest.approx([0.775])
    assert bent.cpt(0.5) == pytest.approx(0.15625)
    points = [(3.5, 0.8), (2.0, 0.5), (9.0, 0.88)]
    assert curve(points).apgr() == pytest.approx(curve(points[::-1]).apgr())


def test_a_point_dearer_than_the_llm_adds_no_area():
    assert curve([(6.0, 0.65), (25.0, 0.7)]).apgr() == pytest.approx([0.5 * 0.5 / 2 + 0.5 * (0.5 + 0.6) / 2])


def test_no_gap_no_area():
    assert np.isnan(curve([(3.5, 0.8)], slm=(1.0, 0.9), llm=(11.0, 0.9)).apgr()).all()
