"""Rows of the results tables, made from grids.

A row is a dictionary of plain values; a figure `x` brings `x_ci` ([low, high] or None) and `x_ci_method`.
`seed` is "all" in the main table and a number in per_seed.csv, never 0 for an average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from r2v.config.methods import OURS, STRONG, WEAK
from r2v.data.episode import MODEL_FAILURES
from r2v.evaluation.measures.frontier import LISTED, area, cost_fraction
from r2v.evaluation.measures.metrics import Figure, figures, robustness_gap, router_figures, tail_figures, values
from r2v.evaluation.measures.outcomes import Grid, Measured
from r2v.evaluation.setup import FRONTIER, MAIN, Setup

TableRow = dict[str, Any]

MANY_FAULTS = 0.05
"""Share of episodes that were not measured above which a row is flagged."""


def _spread(figures: Mapping[str, Figure]) -> TableRow:
    row: TableRow = {}
    for name, figure in figures.items():
        row[name] = figure.value
        row[f"{name}_ci"] = None if figure.interval is None else list(figure.interval)
        row[f"{name}_ci_method"] = figure.method
    return row


def _head(measured: Measured, kind: str, condition: str, method: str, *rest: str) -> TableRow:
    return {
        "id": "/".join((kind, condition, method, *rest)),
        "method": method,
        "benchmark": measured.setup.benchmark,
        "condition": condition,
    }


def _size(grid: Grid) -> TableRow:
    measured = ~np.isnan(grid["success"])
    return {
        "n_tasks": int(measured.any(axis=1).sum()),
        "n_seeds": len(grid.seeds),
        "n_env_faults": grid.num_faults,
        "many_faults": grid.num_faults > MANY_FAULTS * measured.size,
        **{f"n_{kind}": int(np.nansum(grid[kind])) for kind in MODEL_FAILURES},
    }


def summary_row(measured: Measured, condition: str, method: str) -> TableRow:
    """One line of main_table.csv."""
    grid, setup = measured.grids[condition, method, MAIN], measured.setup
    apgr, cpt_50, cpt_80 = area(measured, condition, method)
    return {
        **_head(measured, "main", condition, method),
        "seed": "all",
        **_spread(figures(grid, setup)),
        **tail_figures(grid, setup.cvar_alpha),
        **_spread(
            {
                "cost_fraction": cost_fraction(measured, condition, grid),
                "cost_fraction_list": cost_fraction(measured, condition, grid, LISTED),
                "robustness_gap": robustness_gap(measured, condition, method),
            }
        ),
        **_spread({"apgr": apgr}),
        "cpt_50": cpt_50,
        "cpt_80": cpt_80,
        **router_figures(setup, condition, method),
        "n_injected": int(np.nansum(grid["injected"])),
        **_size(grid),
    }


def seed_rows(measured: Measured, condition: str, method: str) -> Iterator[TableRow]:
    """Lines of per_seed.csv: the same figures of one seed each."""
    grid, setup = measured.grids[condition, method, MAIN], measured.setup
    for seed in grid.seeds:
        alone = grid.at_seed(seed)
        yield {
            **_head(measured, "seed", condition, method, f"s{seed}"),
            "seed": seed,
            **values(alone, setup),
            **_spread(figures(alone, setup, ("success_rate",))),
            **tail_figures(alone, setup.cvar_alpha),
            "ece": None,
            "brier": None,
            **_size(alone),
        }


def category_rows(measured: Measured, condition: str, method: str) -> Iterator[TableRow]:
    """Lines of per_category.csv: episodes that a perturbation category hit, and those that none did."""
    grid, setup = measured.grids[condition, method, MAIN], measured.setup
    nothing = np.where(
        np.isnan(grid["success"]),
        np.nan,
        1.0 * ~np.any([hit == 1 for hit in grid.categories.values()] or [np.zeros_like(grid["success"], bool)], axis=0),
    )
    for category, mask in {"none": nothing, **grid.categories}.items():
        if not (mask == 1).any():
            continue
        hit = grid.where(mask)
        yield {
            **_head(measured, "category", condition, method, category),
            "category": category,
            **_spread(figures(hit, setup, ("success_rate", "llm_call_rate"))),
            "n_episodes": int((mask == 1).sum()),
            **_size(hit),
        }


def frontier_rows(measured: Measured, condition: str) -> Iterator[TableRow]:
    """Lines of frontier.csv: both ends, then every operating point of every method."""
    names = ("success_rate", "llm_call_rate", "avg_cost", "avg_cost_cached", "cost_normalised")
    ends = [(method, MAIN) for method in (WEAK, STRONG) if measured.has(condition, method)]
    setup = measured.setup
    routed = setup.frontier.get(condition, {})
    for method, point in (*ends, *((m, point) for m in routed for point in setup.frontier_points(condition, m))):
        grid = measured.grids[condition, method, point]
        if point == MAIN:  # on the tasks of the other points
            grid = grid.of_tasks(setup.tasks_of(condition, method, FRONTIER))
        yield {
            **_head(measured, "frontier", condition, method, point),
            "operating_point": point,
            **_spread(figures(grid, setup, names)),
            **_spread({"cost_fraction": cost_fraction(measured, condition, grid)}),
            **_size(grid),
        }


def choice_rows(setup: Setup) -> Iterator[TableRow]:
    """Lines of choices.csv: at each operating point of r2v the scores that it could act by, on calibration tasks."""
    for point, choice in setup.choices.items():
        for name, placed in {OURS: choice.own, **choice.compared}.items():
            yield {
                "id": f"choice/{point}/{name}",
                "operating_point": point,
                "score": name,
                "acts": name == choice.score,
                "threshold": placed.tau,
                **asdict(placed.outcome),
                "difference": placed.difference,
                "standard_error": placed.standard_error,
                "n_tasks": choice.num_tasks,
            }
