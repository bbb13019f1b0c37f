from __future__ import annotations

import dataclasses

import pytest

from r2v.evaluation.comparisons import METRICS, comparison_rows, detectable, leaders
from r2v.evaluation.outcomes import measure
from r2v.evaluation.setup import Setup
from r2v.evaluation.statistics import holm, minimum_detectable_difference


def evaluation(make_episode, solved: dict[str, int], frontier=None, tasks=40):
    """One seed, one condition: each method solves its first `solved` tasks."""
    names = [f"t{k:02}" for k in range(tasks)]
    cost = {"slm_only": 1.0, "llm_only": 11.0}
    setup = Setup(
        benchmark="desk",
        methods=tuple(solved),
        seeds=(1,),
        tasks={"noisy": names},
        resamples=500,
        frontier={"noisy": {method: ["b"] for method in frontier or ()}},
    )
    played = [
        make_episode(method, task, 1, k < solved[method], total_cost=cost.get(method, 3.0), point=point)
        for method in solved
        for point in (None, *(["b"] if method in (frontier or ()) else ()))
        for k, task in enumerate(names)
    ]
    return measure(played, setup)


METHODS = {"slm_only": 10, "llm_only": 38, "entropy_router": 24, "random_router": 15, "logprob_router": 29, "r2v": 30}


def test_the_family_is_named_in_advance_and_the_rest_is_beside_it(make_episode):
    rows = {row["method_b"]: row for row in comparison_rows(evaluation(make_episode, METHODS))}
    assert [name for name, row in rows.items() if row["family"]] == [
        "slm_only",
        "llm_only",
        "entropy_router",
        "random_router",
    ]
    assert rows["logprob_router"]["p_holm"] is None and rows["logprob_router"]["significant"] is None
    assert rows["slm_only"]["verdict"] == "higher" and rows["llm_only"]["verdict"] == "lower"
    assert rows["entropy_router"]["p_value"] == 2 / 2**6
    assert rows["entropy_router"]["p_holm"] == 2 / 2**6  # the largest p of four is multiplied by one


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
    assert [row["method_b"] for row in by_metric["apgr"]] == list(rivals)
    for own in by_metric.values():
        assert [row["p_holm"] for row in own] == holm([row["p_value"] for row in own])


def family_row(metric, least, n_tasks=60):
    return {"metric": metric, "family": True, "min_detectable_difference": least, "n_tasks": n_tasks, "n_seeds": 2}


def test_what_a_size_can_show_is_what_the_hardest_test_of_each_family_finds():
    outside = {**family_row("success_rate", 0.5), "family": False}
    rows = [family_row("success_rate", 0.05), family_row("success_rate", 0.09), family_row("apgr", None), outside]
    assert detectable(rows) == "60 tasks x 2 seeds show differences in success of at least 0.09 (80 % power)"
    rows.append(family_row("apgr", 0.071))
    assert detectable(rows) == (
        "60 tasks x 2 seeds show differences in success of at least 0.09, in APGR of at least 0.07 (80 % power)"
    )
    rows.append(family_row("apgr", 0.08, n_tasks=20))
    assert detectable(rows) == (
        "differences that show: in success of at least 0.09 (60 tasks x 2 seeds); "
        "in APGR of at least 0.08 (20 tasks x 2 seeds) (80 % power)"
    )
    assert detectable([outside, family_row("apgr", None)]) is None


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
