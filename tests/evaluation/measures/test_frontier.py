from __future__ import annotations

import numpy as np
import pytest

from r2v.errors import InputError
from r2v.evaluation.measures.comparisons import comparison_rows
from r2v.evaluation.measures.frontier import Curve, area, cost_fraction, interpolated
from r2v.evaluation.measures.outcomes import measure
from r2v.evaluation.measures.table_rows import frontier_rows
from r2v.evaluation.setup import Setup


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
        make_episode(
            *(method, task, 1, solved[point or method][at] == "1"),
            total_cost=cost[point or method],
            point=point,
            escalated=3 if method == "r2v" else 0,
        )
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


def played(make_episode, solved: dict[str, str], escalated: dict[str, int]):
    """Return a measurement with two operating points of r2v and the coin, eight tasks, ten steps an episode."""
    routers = ("random_router", "r2v")
    setup = Setup(
        benchmark="desk",
        methods=("slm_only", "llm_only", *routers),
        seeds=(1,),
        tasks={"noisy": list("abcdefgh")},
        frontier={"noisy": {method: ["b0.50"] for method in routers}},
        resamples=50,
    )
    episodes = [
        make_episode(
            *(method, task, 1, solved[method][at] == "1"),
            point=point,
            escalated=escalated[method],
            total_cost=1.0 + escalated[method],
        )
        for method in setup.methods
        for at, task in enumerate(setup.tasks["noisy"])
        for point in (None, *(["b0.50"] if method in routers else ()))
    ]
    return measure(episodes, setup)


SOLVED = {"slm_only": "1" * 3 + "0" * 5, "llm_only": "1" * 8, "random_router": "1" * 8, "r2v": "1" * 8}
ASKED = {"slm_only": 0, "llm_only": 10, "random_router": 3, "r2v": 3}


def areas(measured) -> list[float | None]:
    rows = comparison_rows(measured)
    found = [area(measured, "noisy", method) for method in ("random_router", "r2v")]
    assert all(figure.value is not None or (cpt_50, cpt_80) == (None, None) for figure, cpt_50, cpt_80 in found)
    assert any(row["metric"] == "apgr" for row in rows) == all(figure.value is not None for figure, *_ in found)
    assert any(row["metric"] == "success_at_cost" for row in rows)
    return [figure.value for figure, *_ in found]


def test_where_the_small_policy_solves_nothing_no_method_has_an_area(make_episode):
    assert areas(played(make_episode, SOLVED, ASKED)) == pytest.approx([0.85, 0.85])
    assert areas(played(make_episode, {**SOLVED, "slm_only": "0" * 8}, ASKED)) == [None, None]


@pytest.mark.parametrize(("steps", "solved"), [(0, SOLVED["slm_only"]), (10, SOLVED["llm_only"])])
def test_a_router_that_never_mixes_has_no_area(make_episode, steps, solved):
    """Both of its points lie on an end, and the area below a diagonal, .5, would describe no router."""
    measured = played(make_episode, {**SOLVED, "r2v": solved}, {**ASKED, "r2v": steps})
    assert areas(measured) == [pytest.approx(0.85), None]


def test_a_polyline_is_read_between_its_points_draw_by_draw():
    rng = np.random.default_rng(0)
    x, y, at = rng.random((50, 4)), rng.random((50, 4)), rng.random(50) * 1.4 - 0.2
    by_hand = [np.interp(u, np.sort(a), b[np.argsort(a)]) for a, b, u in zip(x, y, at, strict=True)]
    assert interpolated(x, y, at) == pytest.approx(by_hand)
    tied = interpolated(np.array([[1.0, 1.0, 0.0]]), np.array([[0.2, 0.7, 0.0]]), one(1.0))
    assert tied == pytest.approx([0.7]), "of two points for one price the better"
