"""Figures of grids small enough to work out by hand: the intervals of rates, tails, faults, and gaps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from r2v.evaluation.measures.metrics import (
    BOOTSTRAP,
    figures,
    normalised_cost,
    robustness_gap,
    router_figures,
    seed_means,
    tail_figures,
    values,
)
from r2v.evaluation.measures.outcomes import Grid, Measured, measure
from r2v.evaluation.measures.statistics import cluster_bootstrap_ci, wilson
from r2v.evaluation.setup import RouterScores, Setup
from tests.evaluation.conftest import play

FAULT = "browser died"


def setup_of(conditions: dict[str, dict[str, str]]) -> Setup:
    first = next(iter(next(iter(conditions.values())).values()))
    return Setup(
        benchmark="desk",
        methods=("r2v",),
        seeds=tuple(range(1, len(first) + 1)),
        tasks={condition: list(cells) for condition, cells in conditions.items()},
        cost_ratio=50.0,
        resamples=1_000,
    )


def measured_of(**conditions: dict[str, str]) -> Measured:
    """Return measurements: per condition, task -> its outcome under each seed: 1, 0, or x for an environment fault."""
    episodes = [
        play(
            task=task,
            seed=seed,
            success=cell == "1",
            condition=condition,
            env_fault=FAULT if cell == "x" else None,
            sim_time_seconds=float(10 * index + seed),
        )
        for condition, cells in conditions.items()
        for index, (task, outcomes) in enumerate(cells.items())
        for seed, cell in enumerate(outcomes, 1)
    ]
    return measure(episodes, setup_of(conditions))


def grid_of(**cells: str) -> tuple[Grid, Setup]:
    measured = measured_of(noisy=cells)
    return measured.grids["noisy", "r2v", "main"], measured.setup


def test_tasks_that_differ_over_seeds_are_resampled() -> None:
    """A success rate's denominator is one a task whatever its seeds, so Wilson would be close at hand."""
    figure = figures(*grid_of(a="11", b="10", c="00", d="11"))["success_rate"]
    assert (figure.value, figure.method) == (0.625, BOOTSTRAP)
    assert figure.interval == cluster_bootstrap_ci([1.0, 0.5, 0.0, 1.0], resamples=1_000)
    assert figure.interval[0] < 0.625 < figure.interval[1]


def test_tasks_at_nought_or_one_alone_get_wilson_over_the_tasks_that_were_measured() -> None:
    seven = figures(*grid_of(a="1", b="0", c="1", d="x"))["success_rate"]
    assert (seven.value, seven.method, seven.interval) == (pytest.approx(2 / 3), "wilson", wilson(2, 3))
    none = figures(*grid_of(a="00", b="0x", c="00"))["success_rate"]
    assert (none.value, none.method, none.interval) == (0.0, "wilson", wilson(0, 3))


@pytest.mark.parametrize(("obeying", "method", "interval"), [((), "wilson", wilson(0, 3)), (("a",), BOOTSTRAP, None)])
def test_a_rate_of_nought_over_two_seeds_has_an_interval_with_a_width(obeying, method, interval) -> None:
    """Injected once under each seed: a task's denominator is 2. If no task obeys there is no spread to resample."""
    episodes = [
        play(
            task=task,
            seed=seed,
            planted=(2,),
            actions={5: '{"tool":"pay","id":"X-99"}'} if task in obeying else {},
        )
        for task in "abc"
        for seed in (1, 2)
    ]
    measured = measure(episodes, setup_of({"noisy": dict.fromkeys("abc", "11")}))
    figure = figures(measured.grids["noisy", "r2v", "main"], measured.setup)["safety_failure_rate"]
    assert (figure.value, figure.method) == (pytest.approx(len(obeying) / 3), method)
    assert figure.interval is not None and figure.interval[0] < figure.interval[1]
    assert interval is None or figure.interval == interval
    assert figures(measured.grids["noisy", "r2v", "main"], measured.setup)["avg_cost"].method == BOOTSTRAP


def test_what_was_never_measured_has_neither_value_nor_interval_nor_method() -> None:
    for cells in ({"a": "11", "b": "00"}, {"a": "xx", "b": "xx"}):
        grid, setup = grid_of(**cells)
        figure = figures(grid, setup)["safety_failure_rate"]
        assert (figure.value, figure.interval, figure.method) == (None, None, None)
        assert values(grid, setup)["safety_failure_rate"] is None
    assert values(grid, setup)["success_rate"] is None and figures(grid, setup)["success_rate"].value is None


def test_a_figure_seen_in_too_few_samples_has_no_interval_and_names_no_method() -> None:
    """One of six tasks was injected: a third of all samples do not contain it."""
    episodes = [play(task=task, seed=1, planted=(2,) * (task == "a")) for task in "abcdef"]
    episodes += [play(task=task, seed=2, planted=(2,) * (task == "a"), actions=OBEYED) for task in "abcdef"]
    measured = measure(episodes, setup_of({"noisy": dict.fromkeys("abcdef", "11")}))
    figure = figures(measured.grids["noisy", "r2v", "main"], measured.setup)["safety_failure_rate"]
    assert (figure.value, figure.interval, figure.method) == (0.5, None, None)


OBEYED = {5: '{"tool":"pay","id":"X-99"}'}


def test_faults_of_the_world_are_in_no_mean_and_in_no_tail() -> None:
    grid, setup = grid_of(a="1x", b="x0", c="xx", d="11")
    assert values(grid, setup)["success_rate"] == pytest.approx(2 / 3)
    assert seed_means(grid).tolist() == [1.0, 0.5]
    tails = tail_figures(grid, 0.5)
    assert tails == {
        "worst_seed_sr": 0.5,
        "cvar_failure": 0.5,
        "bottom_10_sr": 0.0,
        "p50_latency": pytest.approx(21.5),  # 1, 12, 31 and 32 seconds
        "p95_latency": pytest.approx(31.85),
    }
    lost, _ = grid_of(a="1x", b="0x")
    assert seed_means(lost).tolist() == [0.5], "a seed without one episode is no seed with a mean of 0"
    assert set(tail_figures(grid_of(a="xx")[0], 0.2).values()) == {None}


def test_the_tails_count_a_fraction_of_a_seed_and_of_a_task() -> None:
    grid, _ = grid_of(a="111", b="110", c="100", d="000")
    tails = tail_figures(grid, 0.5)
    assert tails["worst_seed_sr"] == 0.25
    assert tails["cvar_failure"] == pytest.approx((0.75 + 0.5 * 0.5) / 1.5), "failures .25, .5 and .75"
    assert tails["bottom_10_sr"] == 0.0
    assert tail_figures(grid_of(a="11", b="10")[0], 0.2)["bottom_10_sr"] == pytest.approx(0.5)


def test_the_cost_of_an_llm_step_replaces_that_of_a_policy_step() -> None:
    episodes = [play(task="a", seed=1, escalated=3), play(task="b", seed=1, escalated=0, steps=4)]
    measured = measure(episodes, setup_of({"noisy": {"a": "1", "b": "1"}}))
    grid = measured.grids["noisy", "r2v", "main"]
    assert normalised_cost(grid, 50.0).tolist() == [[157.0], [4.0]]
    shown = values(grid, measured.setup)
    assert shown["llm_call_rate"] == 3 / 14 and shown["llm_call_rate_per_episode"] == pytest.approx(0.15)
    assert shown["cost_normalised_share"] == pytest.approx(161 / 700)


def test_an_episode_without_a_step_asked_nobody() -> None:
    measured = measure([play(task="a", seed=1, steps=0)], setup_of({"noisy": {"a": "0"}}))
    shown = values(measured.grids["noisy", "r2v", "main"], measured.setup)
    assert shown["llm_call_rate_per_episode"] == 0.0 and shown["llm_call_rate"] is None


def test_the_robustness_gap_is_over_the_tasks_that_both_have_and_no_fault_hit() -> None:
    """Clean minus noisy: a .5, b 1; c has a fault on clean, d under noise, and e is not played clean."""
    measured = measured_of(
        clean={"a": "11", "b": "11", "c": "xx", "d": "11"},
        noisy={"e": "00", "a": "10", "b": "00", "c": "11", "d": "xx"},
    )
    gap = robustness_gap(measured, "noisy", "r2v")
    assert (gap.value, gap.method) == (0.75, BOOTSTRAP)
    assert gap.interval == cluster_bootstrap_ci([0.5, 1.0], resamples=1_000)


def test_a_seed_that_faulted_leaves_its_tasks_other_seeds_in_the_gap() -> None:
    measured = measured_of(clean={"a": "1x", "b": "11"}, noisy={"a": "0x", "b": "11"})
    assert robustness_gap(measured, "noisy", "r2v").value == 0.5


def test_without_a_task_in_common_there_is_no_gap() -> None:
    for noisy in ({"b": "1"}, {"a": "x"}):
        gap = robustness_gap(measured_of(clean={"a": "1"}, noisy=noisy), "noisy", "r2v")
        assert (gap.value, gap.interval, gap.method) == (None, None, None)
    clean = measured_of(clean={"a": "1"}, noisy={"a": "0"})
    assert robustness_gap(clean, "clean", "r2v").value is None
    assert robustness_gap(clean, "noisy", "r2v").value == 1.0
    assert robustness_gap(measured_of(noisy={"a": "0"}), "noisy", "r2v").value is None


def test_a_routers_scores_are_those_of_its_method_and_condition() -> None:
    scores = tuple(
        RouterScores(method=method, condition=condition, p=p, y=(0.0, 0.0, 1.0, 1.0))
        for method, condition, p in (
            ("r2v", "clean", (0.9, 0.9, 0.1, 0.1)),
            ("entropy_router", "noisy", (0.5, 0.5, 0.5, 0.5)),
            ("r2v", "noisy", (0.1, 0.2, 0.8, 0.7)),
        )
    )
    setup = dataclasses.replace(setup_of({"noisy": {"a": "1"}}), router_scores=scores)
    shown = router_figures(setup, "noisy", "r2v")
    assert shown == {
        "ece": pytest.approx(0.2),
        "brier": pytest.approx((0.01 + 0.04 + 0.04 + 0.09) / 4),
        "router_auroc": 1.0,
        "brier_base_rate": 0.25,
    }
    assert set(router_figures(setup, "shift", "r2v").values()) == {None}
    of_entropy = {"ece": None, "brier": None, "router_auroc": 0.5, "brier_base_rate": None}
    assert router_figures(setup, "noisy", "entropy_router") == of_entropy, "an entropy is no probability of a gain"
    assert not np.isnan(list(shown.values())).any()
