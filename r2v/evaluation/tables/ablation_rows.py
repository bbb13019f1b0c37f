"""Rows of ablations.csv: the whole pipeline against the pipeline without one part, paired by task.

Success is tested, with Holm's correction over all rows; dollars as billed and APGR are given with intervals of their
differences. APGR is each side's own: between the small policy and the LLM of its pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from r2v.config.methods import Ablation
from r2v.errors import EmptyResult, InputError
from r2v.evaluation.measures.frontier import BILLED, curve_of
from r2v.evaluation.measures.metrics import mean_over_seeds
from r2v.evaluation.measures.outcomes import Grid, Measured
from r2v.evaluation.measures.statistics import holm, paired_difference, percentile_interval
from r2v.evaluation.setup import MAIN
from r2v.evaluation.tables.files import csv_text, round_figures


def ablation_rows(
    played: Sequence[tuple[Ablation, str, Measured, Measured, Sequence[str]]],
) -> list[dict[str, Any]]:
    """One row per (ablation, condition, base, ablated, retrained jobs); p-values are Holm-adjusted over all rows.
    Raises InputError where the two were not played on the same tasks and seeds, EmptyResult where no task could be
    measured."""
    rows = [_row(*sides) for sides in played]
    for row, p_holm in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_holm"] = p_holm
    return rows


def _row(
    ablation: Ablation, condition: str, base: Measured, ablated: Measured, retrained: Sequence[str]
) -> dict[str, Any]:
    of_base, of_ablated = _paired(
        ablation.name,
        base.grids[condition, ablation.base_method, MAIN],
        ablated.grids[condition, ablation.ablated_method, MAIN],
    )
    setup = base.setup
    (base_sr, _), (ablated_sr, _) = (mean_over_seeds(grid["success"]) for grid in (of_base, of_ablated))
    (base_cost, _), (ablated_cost, _) = (mean_over_seeds(grid[BILLED]) for grid in (of_base, of_ablated))
    success = paired_difference(ablated_sr, base_sr, setup.level, setup.resamples)
    cost = paired_difference(ablated_cost, base_cost, setup.level, setup.resamples)
    return {
        "name": ablation.name,
        "description": ablation.description,
        "base_method": ablation.base_method,
        "ablated_method": ablation.ablated_method,
        "benchmark": setup.benchmark,
        "condition": condition,
        "base_sr": float(base_sr.mean()),
        "ablated_sr": float(ablated_sr.mean()),
        "delta": success.difference,
        "delta_ci": list(success.interval),
        "p_value": success.p_value,
        "n_tasks": success.num_tasks,
        "retrained_stages": " ".join(retrained) or "none",
        "min_detectable_difference": success.detectable,
        "base_cost": float(base_cost.mean()),
        "ablated_cost": float(ablated_cost.mean()),
        "cost_delta": cost.difference,
        "cost_delta_ci": list(cost.interval),
        **_apgr(ablation, condition, base, ablated),
    }


def _apgr(ablation: Ablation, condition: str, base: Measured, ablated: Measured) -> dict[str, Any]:
    """APGR of both sides and of their difference, by paired bootstrap over tasks; None where a side plays no frontier,
    or its LLM gains nothing."""
    figures: dict[str, Any] = dict.fromkeys(("base_apgr", "ablated_apgr", "apgr_delta", "apgr_delta_ci"))
    curves = (curve_of(base, condition, ablation.base_method), curve_of(ablated, condition, ablation.ablated_method))
    if None in curves:
        return figures
    of_base, of_ablated = (curve.apgr() for curve in curves if curve is not None)
    for name, draws in {"base_apgr": of_base, "ablated_apgr": of_ablated, "apgr_delta": of_ablated - of_base}.items():
        figures[name] = None if np.isnan(draws[0]) else float(draws[0])
    if figures["apgr_delta"] is not None:
        interval = percentile_interval((of_ablated - of_base)[1:], base.setup.level)
        figures["apgr_delta_ci"] = None if interval is None else list(interval)
    return figures


def _paired(name: str, base: Grid, ablated: Grid) -> tuple[Grid, Grid]:
    """Both grids, of the tasks that were measured on both sides, with the cells that were."""
    if base.tasks != ablated.tasks or base.seeds != ablated.seeds:
        raise InputError(
            f"ablation {name}: its sides played {len(base.tasks)} tasks with seeds {list(base.seeds)} and "
            f"{len(ablated.tasks)} with {list(ablated.seeds)}; they must be the same tasks and seeds"
        )
    both = ~(np.isnan(base["success"]) | np.isnan(ablated["success"]))
    tasks = [task for row, task in enumerate(base.tasks) if both[row].any()]
    if not tasks:
        raise EmptyResult(f"ablation {name}: every episode ended in a fault of the world")
    mask = both.astype(float)
    return base.where(mask).of_tasks(tasks), ablated.where(mask).of_tasks(tasks)


def earnings(rows: Sequence[dict[str, Any]], parts: Mapping[str, tuple[str, int]]) -> list[dict[str, Any]]:
    """A row for each learned part (part -> ablation, +1 where that adds the part and -1 where it takes it away) whose
    ablation is among the rows: the gain of the part in executed success. The part is worth keeping where the 95 %
    interval of that gain lies above 0; else the row holds no, which on few tasks is no proof of no gain."""
    by_name = {row["name"]: row for row in rows}
    rows_of_parts = []
    for part, (name, sign) in parts.items():
        if (row := by_name.get(name)) is not None:
            gain, interval = sign * row["delta"], sorted(sign * end for end in row["delta_ci"])
            rows_of_parts.append(
                {
                    "part": part,
                    "earns_its_place": "yes" if interval[0] > 0 else "no",
                    "gain": gain,
                    "gain_ci": interval,
                    "ablation": name,
                    "condition": row["condition"],
                    "n_tasks": row["n_tasks"],
                }
            )
    return rows_of_parts


def ablation_texts(rows: Sequence[dict[str, Any]], earned: Sequence[dict[str, Any]] = ()) -> dict[str, str]:
    """Return the texts of ablations.csv and earns_its_place.csv by name."""
    if not rows:
        raise EmptyResult("ablations.names is empty: no row to write; name at least one")
    tables = {"ablations.csv": rows, "earns_its_place.csv": earned}
    return {name: csv_text(name, round_figures(table)) for name, table in tables.items()}
