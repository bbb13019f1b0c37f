"""Comparisons: R2V against every other method, on the same tasks, by three metrics with a family of tests each.

success_rate: success at each method's main point, at any cost; tested against methods that are no routers.
success_at_cost: success at r2v's main point, and of a router for the same dollars (`frontier.success_at_cost`).
apgr: the area under the frontier, over all costs.

A family is the methods of `FAMILY` that its metric is a test for, times the conditions; Holm's correction runs over
each. Every other comparison is printed too, with `family` false, no corrected p and so no claim of significance.
Success at the main points is tested by sign flips of whole tasks; the others, which are no means over tasks, by paired
bootstrap.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from r2v.config.methods import BOUNDS, FAMILY, OURS, ROUTERS
from r2v.evaluation.measures.frontier import Curve, curve_of, curve_tasks, success_at_cost
from r2v.evaluation.measures.metrics import mean_over_seeds
from r2v.evaluation.measures.outcomes import Measured
from r2v.evaluation.measures.statistics import (
    FloatArray,
    PairedDifference,
    bootstrap_p,
    holm,
    minimum_detectable_difference,
    paired_difference,
    percentile_interval,
)
from r2v.evaluation.measures.table_rows import TableRow
from r2v.evaluation.setup import MAIN

AT_COST = "success_at_cost"
METRICS = ("success_rate", AT_COST, "apgr")
"""Metrics of comparisons, each with its own family of tests."""
SIGNIFICANT = 0.05
"""Level of a test, after correction."""


def comparison_rows(measured: Measured) -> list[TableRow]:
    """Lines of comparisons.csv."""
    rows = [row for condition in measured.setup.conditions for row in _of_condition(measured, condition)]
    for metric in METRICS:
        family = [row for row in rows if row["family"] and row["metric"] == metric]
        for row, p_holm in zip(family, holm([row["p_value"] for row in family]), strict=True):
            row["p_holm"], row["significant"] = p_holm, p_holm <= SIGNIFICANT
    for row in rows:
        row["verdict"] = verdict(row)
    return rows


def _of_condition(measured: Measured, condition: str) -> Iterator[TableRow]:
    if not measured.has(condition, OURS):
        return
    for other in measured.setup.methods:
        if other != OURS and (row := _success(measured, condition, other)):
            yield row
        if other != OURS and other in ROUTERS and (row := _at_cost(measured, condition, other)):
            yield row
    ours = curve_of(measured, condition, OURS)
    for other in measured.setup.frontier.get(condition, {}):
        if ours and other != OURS and (row := _apgr(measured, condition, ours, other)):
            yield row


def paired_success(measured: Measured, condition: str, a: str, b: str) -> tuple[PairedDifference, float, float] | None:
    """The difference a - b over the tasks that both could be measured on, and both means there."""
    grids = [measured.grids[condition, method, MAIN] for method in (a, b)]
    shared = min((grid.tasks for grid in grids), key=len)  # a limited cell has the first of the other's tasks
    (of_a, in_a), (of_b, in_b) = (mean_over_seeds(grid.of_tasks(shared)["success"]) for grid in grids)
    both = (in_a > 0) & (in_b > 0)
    if not both.any():
        return None
    setup = measured.setup
    difference = paired_difference(of_a[both], of_b[both], setup.level, setup.resamples)
    return difference, float(of_a[both].mean()), float(of_b[both].mean())


def _row(measured: Measured, condition: str, other: str, metric: str) -> TableRow:
    return {
        "id": f"cmp/{condition}/{OURS}-{other}/{metric}",
        "method_a": OURS,
        "method_b": other,
        "benchmark": measured.setup.benchmark,
        "condition": condition,
        "metric": metric,
        "p_value": None,
        "p_holm": None,
        "significant": None,
        "effect_size": None,
        "standard_error": None,
        "min_detectable_difference": None,
        "family": other in FAMILY and (other in ROUTERS) == (metric != METRICS[0]),
        "n_tasks": len(measured.setup.tasks[condition]),
        "n_seeds": len(measured.setup.seeds),
    }


def _success(measured: Measured, condition: str, other: str) -> TableRow | None:
    if (paired := paired_success(measured, condition, OURS, other)) is None:
        return None
    difference, value_a, value_b = paired
    return {
        **_row(measured, condition, other, "success_rate"),
        "value_a": value_a,
        "value_b": value_b,
        "difference": difference.difference,
        "ci_lower": difference.interval[0],
        "ci_upper": difference.interval[1],
        "p_value": difference.p_value,
        "effect_size": difference.effect_size,
        "standard_error": difference.standard_error,
        "min_detectable_difference": difference.detectable,
        "test_name": "sign-flip permutation over tasks",
        "n_tasks": difference.num_tasks,
    }


def _at_cost(measured: Measured, condition: str, other: str) -> TableRow | None:
    drawn = success_at_cost(measured, condition, OURS, other)
    return None if drawn is None else _bootstrapped(measured, condition, other, AT_COST, *drawn)


def _apgr(measured: Measured, condition: str, ours: Curve, other: str) -> TableRow | None:
    theirs = curve_of(measured, condition, other)
    return None if theirs is None else _bootstrapped(measured, condition, other, "apgr", ours.apgr(), theirs.apgr())


def _bootstrapped(
    measured: Measured, condition: str, other: str, metric: str, a: FloatArray, b: FloatArray
) -> TableRow | None:
    """The row of a figure of both methods, (1 + resamples,) each, estimate first."""
    draws = (a - b)[1:]
    interval = percentile_interval(draws, measured.setup.level)
    if np.isnan(a[0] - b[0]) or interval is None:
        return None
    defined = draws[np.isfinite(draws)]
    error = float(defined.std(ddof=1)) if len(defined) > 1 else 0.0  # of a single resample there is no spread
    return {
        **_row(measured, condition, other, metric),
        "value_a": float(a[0]),
        "value_b": float(b[0]),
        "difference": float(a[0] - b[0]),
        "ci_lower": interval[0],
        "ci_upper": interval[1],
        "p_value": bootstrap_p(draws),
        "standard_error": error,
        "min_detectable_difference": minimum_detectable_difference(error, measured.setup.level) if error > 0 else None,
        "test_name": "paired bootstrap over tasks",
        "n_tasks": len(curve_tasks(measured, condition, other)),
    }


def verdict(row: TableRow) -> str:
    """higher | lower | inconclusive: the interval must exclude 0 and, in the family, Holm's p must agree."""
    if row["family"] and not row["significant"]:
        return "inconclusive"
    return "higher" if row["ci_lower"] > 0 else "lower" if row["ci_upper"] < 0 else "inconclusive"


def leaders(measured: Measured, condition: str) -> set[str]:
    """The routers printed bold: the best success rate, and all that are not significantly worse (Holm)."""
    means = {}
    for method in measured.setup.methods:
        total, tasks = mean_over_seeds(measured.grids[condition, method, MAIN]["success"])
        if method not in BOUNDS and tasks.any():
            means[method] = total.sum() / tasks.sum()
    if len(means) < 2:
        return set()
    best = max(means, key=lambda method: means[method])
    others = [method for method in means if method != best]
    differences = [paired_success(measured, condition, best, other) for other in others]
    corrected = holm([1.0 if pair is None else pair[0].p_value for pair in differences])
    return {best, *(other for other, p in zip(others, corrected, strict=True) if p > SIGNIFICANT)}
