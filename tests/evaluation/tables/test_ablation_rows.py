"""Rows of ablations.csv, compared with figures worked out by hand."""

from __future__ import annotations

import math

import pytest

from r2v.config.methods import registry
from r2v.errors import EmptyResult, InputError
from r2v.evaluation.measures.outcomes import measure
from r2v.evaluation.setup import Setup
from r2v.evaluation.tables.ablation_rows import ablation_rows

TASKS = [f"t{k:02}" for k in range(40)]
COST = {"slm_only": 1.0, "llm_only": 11.0}


def side(make_episode, solved, cost=3.0, frontier=False, tasks=TASKS, broken=()):
    """Return one seed under noisy: each method solves its first `solved` tasks, r2v at `cost`; a fault on `broken`
    ones."""
    setup = Setup(
        benchmark="desk",
        methods=tuple(solved),
        seeds=(1,),
        tasks={"noisy": tasks},
        resamples=500,
        frontier={"noisy": {"r2v": ["b0.10"]}} if frontier else {},
    )
    played = [
        make_episode(
            method,
            task,
            1,
            k < count,
            total_cost=COST.get(method, cost),
            point=point,
            escalated=3 if method == "r2v" else 0,
            env_fault="the site died" if task in broken else None,
        )
        for method, count in solved.items()
        for point in ((None, "b0.10") if frontier and method == "r2v" else (None,))
        for k, task in enumerate(tasks)
    ]
    return measure(played, setup)


def test_success_dollars_and_what_could_be_detected(make_episode):
    base, ablated = side(make_episode, {"r2v": 30}), side(make_episode, {"r2v": 24}, cost=2.0)
    (row,) = ablation_rows([(registry().rows["no_dpo"], "noisy", base, ablated, ["preference", "router"])])
    assert (row["base_sr"], row["ablated_sr"], row["p_value"]) == (0.75, 0.6, 2 / 2**6)
    assert row["delta"] == pytest.approx(-0.15)
    spread = math.sqrt((6 * 0.85**2 + 34 * 0.15**2) / 39)  # six tasks lost of forty
    assert row["min_detectable_difference"] == pytest.approx((1.959964 + 0.841621) * spread / math.sqrt(40), rel=1e-6)
    assert (row["base_cost"], row["ablated_cost"], row["cost_delta"], row["cost_delta_ci"]) == (3, 2, -1, [-1, -1])
    assert row["retrained_stages"] == "preference router" and row["apgr_delta"] is None


def test_apgr_is_of_each_sides_own_ends(make_episode):
    """A point at x = .2: the area under (0, 0), (.2, y), (1, 1) is .1 y + .4 (1 + y)."""
    ends = {"slm_only": 10, "llm_only": 38}
    base = side(make_episode, {**ends, "r2v": 31}, frontier=True)
    ablated = side(make_episode, {**ends, "r2v": 24}, frontier=True)
    (row,) = ablation_rows([(registry().rows["no_rounds"], "noisy", base, ablated, [])])
    assert row["base_apgr"] == pytest.approx(0.4 + 0.5 * 0.75)
    assert row["ablated_apgr"] == pytest.approx(0.4 + 0.5 * 0.5)
    low, high = row["apgr_delta_ci"]
    assert low < row["apgr_delta"] < high and row["apgr_delta"] == pytest.approx(-0.125)
    unsolved = side(make_episode, {**ends, "slm_only": 0, "r2v": 24}, frontier=True)
    (row,) = ablation_rows([(registry().rows["no_rounds"], "noisy", base, unsolved, [])])
    assert [row[name] for name in ("base_apgr", "ablated_apgr", "apgr_delta", "apgr_delta_ci")] == [None] * 4


def test_p_values_are_corrected_over_the_rows(make_episode):
    base = side(make_episode, {"r2v": 30})
    rows = ablation_rows(
        [
            (registry().rows[name], "noisy", base, side(make_episode, {"r2v": solved}), [])
            for name, solved in {"none": 30, "no_dpo": 22, "no_rounds": 25}.items()
        ]
    )
    assert [row["p_value"] for row in rows] == [1, 2 / 2**8, 2 / 2**5]
    assert [row["p_holm"] for row in rows] == [1, 3 * 2 / 2**8, 2 * 2 / 2**5]
    assert rows[0]["min_detectable_difference"] is None


def test_faults_of_either_side_are_left_out_of_both(make_episode):
    base, ablated = side(make_episode, {"r2v": 30}, broken=["t00"]), side(make_episode, {"r2v": 30}, broken=["t39"])
    (row,) = ablation_rows([(registry().rows["none"], "noisy", base, ablated, [])])
    assert (row["n_tasks"], row["base_sr"], row["ablated_sr"]) == (38, 29 / 38, 29 / 38)
    with pytest.raises(EmptyResult, match="every episode ended in a fault"):
        ablation_rows([(registry().rows["none"], "noisy", base, side(make_episode, {"r2v": 1}, broken=TASKS), [])])


def test_sides_of_other_tasks_are_refused(make_episode):
    base, ablated = side(make_episode, {"r2v": 30}), side(make_episode, {"r2v": 30}, tasks=TASKS[1:])
    with pytest.raises(InputError, match="40 tasks with seeds .1. and 39"):
        ablation_rows([(registry().rows["none"], "noisy", base, ablated, [])])
