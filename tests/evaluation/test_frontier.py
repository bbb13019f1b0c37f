from __future__ import annotations

import numpy as np
import pytest

from r2v.errors import InputError
from r2v.evaluation.frontier import Curve, area, cost_fraction
from r2v.evaluation.outcomes import measure
from r2v.evaluation.setup import Setup
from r2v.evaluation.table_rows import frontier_rows


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


def test_the_area_under_a_random_router_is_its_closed_form():
    """Ten steps that must all be right, .95 against .995, a share q of them the LLM's: the rate is p ^ 10 with
    p = .95 + .045 q. The area, .465414, is ((p_l^11 - p_s^11) / (11 (p_l - p_s)) - p_s^10) / (p_l^10 - p_s^10); eleven
    points give the trapezoid's .465760, and more come nearer to the area."""
    p_s, p_l = 0.95, 0.995
    known = ((p_l**11 - p_s**11) / (11 * (p_l - p_s)) - p_s**10) / (p_l**10 - p_s**10)
    assert known == pytest.approx(0.465414, abs=5e-7)
    for parts, area_of in ((10, 0.465760), (1000, known)):
        shares = np.arange(1, parts) / parts
        points = [(1 + 29 * q, (p_s + q * (p_l - p_s)) ** 10) for q in shares]
        assert curve(points, (1.0, p_s**10), (30.0, p_l**10)).apgr() == pytest.approx([area_of], abs=1e-6)


def test_a_point_dearer_than_the_llm_adds_no_area():
    assert curve([(6.0, 0.65), (25.0, 0.7)]).apgr() == pytest.approx([0.5 * 0.5 / 2 + 0.5 * (0.5 + 0.6) / 2])


def test_no_gap_no_area():
    assert np.isnan(curve([(3.5, 0.8)], slm=(1.0, 0.9), llm=(11.0, 0.9)).apgr()).all()


def test_a_curve_stands_between_its_ends_on_its_own_tasks(make_episode):
    """Of four tasks the frontier plays two, which the small policy fails and the LLM solves: there the router solves
    one of two for half of the way's cost, and at its main point, which plays all four, both for a tenth. On all four
    the ends would be .5 and 1. The area: (0, 0), (.1, 1), (.5, .5), (1, 1)."""
    cost = {"slm_only": 1.0, "llm_only": 11.0, "r2v": 2.0, "b0.50": 6.0}
    solved = {"slm_only": "0011", "llm_only": "1111", "r2v": "1100", "b0.50": "10"}
    tasks = ["a", "b", "c", "d"]
    setup = Setup(
        benchmark="desk",
        methods=("slm_only", "llm_only", "r2v"),
        seeds=(1,),
        tasks={"noisy": tasks},
        frontier={"noisy": {"r2v": ["b0.50"]}},
        limits={"frontier": 2},
        resamples=100,
    )
    played = [
        make_episode(method, task, 1, solved[point or method][at] == "1", total_cost=cost[point or method], point=point)
        for method in setup.methods
        for at, task in enumerate(tasks)
        for point in (None, "b0.50")
        if point is None or (method == "r2v" and at < 2)
    ]
    measured = measure(played, setup)
    assert setup.num_episodes == len(played) == 14
    figure, _, _ = area(measured, "noisy", "r2v")
    assert figure.value == pytest.approx(0.725)
    assert cost_fraction(measured, "noisy", measured.grids["noisy", "r2v", "b0.50"]).value == 0.5
    rows = list(frontier_rows(measured, "noisy"))
    assert [row["operating_point"] for row in rows] == ["main", "main", "main", "b0.50"]
    assert [row["n_tasks"] for row in rows] == [2] * 4 and [row["success_rate"] for row in rows] == [0, 1, 1, 0.5]
    assert [row["cost_fraction"] for row in rows] == pytest.approx([0, 1, 0.1, 0.5])
    with pytest.raises(InputError, match="task c with seed 1 is not in setup.json"):
        measure([*played, make_episode("r2v", "c", 1, True, point="b0.50")], setup)
