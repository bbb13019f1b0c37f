from __future__ import annotations

import dataclasses

import pytest

from r2v.evaluation.measures.comparisons import AT_COST, METRICS, comparison_rows, leaders
from r2v.evaluation.measures.outcomes import measure
from r2v.evaluation.measures.statistics import holm, minimum_detectable_difference
from r2v.evaluation.setup import Setup


def evaluation(make_episode, solved: dict[str, int], frontier=None, tasks=40, usd=None):
    """Return an evaluation of one seed and one condition: each method solves its first `solved` tasks."""
    names = [f"t{k:02}" for k in range(tasks)]
    cost = {"slm_only": 1.0, "llm_only": 11.0, **(usd or {})}
    escalated = {"slm_only": 0, "llm_only": 10}
    setup = Setup(
        benchmark="desk",
        methods=tuple(solved),
        seeds=(1,),
        tasks={"noisy": names},
        resamples=500,
        frontier={"noisy": {method: ["b"] for method in frontier or ()}},
    )
    played = [
        make_episode(
            *(method, task, 1, k < solved[method]),
            total_cost=cost.get(method, 3.0),
            point=point,
            escalated=escalated.get(method, 3),
        )
        for method in solved
        for point in (None, *(["b"] if method in (frontier or ()) else ()))
        for k, task in enumerate(names)
    ]
    return measure(played, setup)


METHODS = {"slm_only": 10, "llm_only": 38, "entropy_router": 24, "random_router": 15, "logprob_router": 29, "r2v": 30}


def test_the_family_is_named_in_advance_and_the_rest_is_beside_it(make_episode):
    everything = comparison_rows(evaluation(make_episode, METHODS))
    rows = {row["method_b"]: row for row in everything if row["metric"] == "success_rate"}
    assert [(row["method_b"], row["metric"]) for row in everything if row["family"]] == [
        ("slm_only", "success_rate"),
        ("llm_only", "success_rate"),
        ("entropy_router", AT_COST),
        ("random_router", AT_COST),
    ]
    assert rows["logprob_router"]["p_holm"] is None and rows["logprob_router"]["significant"] is None
    assert rows["slm_only"]["verdict"] == "higher" and rows["llm_only"]["verdict"] == "lower"
    assert rows["entropy_router"]["p_value"] == 2 / 2**6
    ends = [rows[name] for name in ("slm_only", "llm_only")]
    assert [row["p_holm"] for row in ends] == holm([row["p_value"] for row in ends])


def test_without_r2v_there_is_nothing_to_compare(make_episode):
    assert comparison_rows(evaluation(make_episode, {"slm_only": 1, "llm_only": 5})) == []


def test_bold_is_for_the_best_router_and_those_it_does_not_beat(make_episode):
    close = evaluation(make_episode, METHODS)  # entropy: p = 2 / 2^6, doubled by Holm, is above .05
    assert leaders(close, "noisy") == {"r2v", "logprob_router", "entropy_router"}
    clear = evaluation(make_episode, {**METHODS, "entropy_router": 20, "logprob_router": 12})
    assert leaders(clear, "noisy") == {"r2v"}


def test_frontiers_are_compared_paired(make_episode):
    measured = evaluation(make_episode, METHODS, frontier=("r2v", "entropy_router"))
    (row,) = [row for row in comparison_rows(measured) if row["metric"] == "apgr"]
    # x = .2; y = 20/28 and 14/28: the areas are .2 y / 2 + .8 (1 + y) / 2 = .4 + y / 2
    assert abs(row["value_a"] - (0.4 + 20 / 56)) < 1e-9 and abs(row["value_b"] - 0.65) < 1e-9
    assert row["ci_lower"] > 0 and row["verdict"] == "higher" and row["family"]
    # no draw is below 0, and few of 500 hold none of the six tasks in forty that differ: (34 / 40)^40 of them
    assert row["p_value"] == row["p_holm"] <= 2 * (1 + 5) / 501
    # half the share of tasks that differ over the gap: sqrt(.15 * .85 / 40) / 2 / .7, but for the gap's own spread
    assert row["standard_error"] == pytest.approx(0.0403, rel=0.2)
    assert row["min_detectable_difference"] == minimum_detectable_difference(row["standard_error"])


def test_one_resample_is_no_spread(make_episode):
    measured = evaluation(make_episode, METHODS, frontier=("r2v", "entropy_router"))
    alone = dataclasses.replace(measured, setup=dataclasses.replace(measured.setup, resamples=1))
    (row,) = [row for row in comparison_rows(alone) if row["metric"] == "apgr"]
    assert (row["standard_error"], row["min_detectable_difference"], row["p_value"]) == (0.0, None, 1.0)


def test_each_metric_has_a_family_of_its_own(make_episode):
    rivals = ("entropy_router", "random_router")
    rows = comparison_rows(evaluation(make_episode, METHODS, frontier=("r2v", *rivals, "logprob_router")))
    by_metric = {name: [row for row in rows if row["metric"] == name and row["family"]] for name in METRICS}
    assert [row["method_b"] for row in by_metric["success_rate"]] == ["slm_only", "llm_only"]
    assert all([row["method_b"] for row in by_metric[name]] == list(rivals) for name in (AT_COST, "apgr"))
    for own in by_metric.values():
        assert [row["p_holm"] for row in own] == holm([row["p_value"] for row in own])


def test_success_is_compared_for_the_same_dollars(make_episode):
    """entropy_router solves 24 tasks for 3.0 an episode, r2v 30 for 5.0: on the line from there to the LLM's 38 for
    11.0 its success for 5.0 is (24 + 14 / 4) / 40."""
    measured = evaluation(make_episode, METHODS, usd={"r2v": 5.0})
    rows = {(row["method_b"], row["metric"]): row for row in comparison_rows(measured)}
    row = rows["entropy_router", AT_COST]
    assert (row["value_a"], row["value_b"]) == pytest.approx((30 / 40, 27.5 / 40))
    assert row["difference"] == pytest.approx(2.5 / 40) and row["ci_lower"] < row["difference"] < row["ci_upper"]
    # tasks 0 to 23 and 38 to 39 give 0, tasks 24 to 29 give 3/4, tasks 30 to 37 give -1/4
    spread = ((6 * 0.75**2 + 8 * 0.25**2) / 40 - (2.5 / 40) ** 2) ** 0.5
    assert row["standard_error"] == pytest.approx(spread / 40**0.5, rel=0.1)
    assert row["family"] and row["p_holm"] is not None
    assert not rows["entropy_router", "success_rate"]["family"], "at unequal dollars nothing is tested"
    assert ("slm_only", AT_COST) not in rows and not rows["logprob_router", AT_COST]["family"]


def test_a_lead_that_was_bought_is_none_for_the_same_dollars(make_episode):
    """r2v lies on the line between entropy_router and the LLM."""
    solved = {"slm_only": 10, "llm_only": 38, "entropy_router": 24, "r2v": 31}
    rows = comparison_rows(evaluation(make_episode, solved, usd={"r2v": 7.0}))
    [row] = [row for row in rows if row["metric"] == AT_COST]
    assert row["difference"] == pytest.approx(0, abs=1e-9) and row["verdict"] == "inconclusive"


def test_without_both_ends_nothing_is_compared_for_the_same_dollars(make_episode):
    rows = comparison_rows(evaluation(make_episode, {"slm_only": 1, "entropy_router": 3, "r2v": 5}))
    assert {row["metric"] for row in rows} == {"success_rate"}


def test_tasks_that_one_side_could_not_be_measured_on_are_left_out(make_episode, setup):
    measured = evaluation(make_episode, {"slm_only": 0, "r2v": 2}, tasks=4)
    grids = dict(measured.grids)
    columns = {name: values.copy() for name, values in grids["noisy", "r2v", "main"].columns.items()}
    for values in columns.values():
        values[0] = float("nan")
    grids["noisy", "r2v", "main"] = dataclasses.replace(grids["noisy", "r2v", "main"], columns=columns)
    (row,) = comparison_rows(dataclasses.replace(measured, grids=grids))
    assert (row["n_tasks"], row["value_a"]) == (3, 1 / 3)


def test_a_limited_method_is_compared_on_its_own_tasks(make_episode):
    """The oracle plays five of forty tasks and solves three; r2v solves all five of these."""
    names = [f"t{k:02}" for k in range(40)]
    setup = Setup(
        benchmark="desk",
        methods=("r2v", "oracle_router"),
        seeds=(1,),
        tasks={"noisy": names},
        limits={"oracle_router": 5},
        resamples=100,
    )
    played = [make_episode("r2v", task, 1, k < 20, total_cost=1.0) for k, task in enumerate(names)]
    played += [make_episode("oracle_router", task, 1, k < 3, total_cost=1.0) for k, task in enumerate(names[:5])]
    [row] = comparison_rows(measure(played, setup))
    assert (row["value_a"], row["value_b"], row["n_tasks"]) == (1.0, 0.6, 5)
