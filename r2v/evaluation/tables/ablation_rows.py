"""Rows of ablations.csv: the whole pipeline against the pipeline without one part, paired by task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from r2v.data.episode import Episode
from r2v.errors import EmptyResult, InputError
from r2v.evaluation.statistics import FloatArray, holm, paired_difference
from r2v.evaluation.tables.files import csv_text, round_figures, write_results


class Named(Protocol):
    """What a row is called and compares."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def base_method(self) -> str: ...
    @property
    def ablated_method(self) -> str: ...


def ablation_rows(
    benchmark: str,
    condition: str,
    resamples: int,
    played: Sequence[tuple[Named, Iterable[Episode], Iterable[Episode], Sequence[str]]],
) -> list[dict[str, Any]]:
    """One row per (ablation, base episodes, ablated episodes, retrained jobs); p-values are Holm-adjusted over
    all rows. Raises InputError where the two were not played on the same tasks and seeds."""
    rows: list[dict[str, Any]] = []
    for ablation, base, ablated, retrained in played:
        of_base, of_ablated = _paired(ablation.name, base, ablated)
        found = paired_difference(of_ablated, of_base, resamples=resamples)
        rows.append(
            {
                "name": ablation.name,
                "description": ablation.description,
                "base_method": ablation.base_method,
                "ablated_method": ablation.ablated_method,
                "benchmark": benchmark,
                "condition": condition,
                "base_sr": float(of_base.mean()),
                "ablated_sr": float(of_ablated.mean()),
                "delta": found.difference,
                "delta_ci": list(found.interval),
                "p_value": found.p_value,
                "n_tasks": found.num_tasks,
                "retrained_stages": " ".join(retrained) or "none",
            }
        )
    for row, p_holm in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_holm"] = p_holm
    return rows


def earnings(rows: Sequence[dict[str, Any]], parts: Mapping[str, tuple[str, int]]) -> list[dict[str, Any]]:
    """A row for each learned part (part -> ablation, +1 where that adds the part and -1 where it takes it away) whose
    ablation is among the rows: what the part gains in executed success. It earns its place where the 95 % interval of
    that gain lies above 0; else the row says no, which on few tasks is no proof that it gains nothing."""
    by_name = {row["name"]: row for row in rows}
    found = []
    for part, (name, sign) in parts.items():
        if (row := by_name.get(name)) is not None:
            gain, interval = sign * row["delta"], sorted(sign * end for end in row["delta_ci"])
            found.append(
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
    return found


def write_ablations(folder: Path, rows: Sequence[dict[str, Any]], earned: Sequence[dict[str, Any]] = ()) -> None:
    """Write ablations.csv, earns_its_place.csv and their manifest."""
    if not rows:
        raise EmptyResult("ablations.names is empty: no row to write; name at least one")
    tables = {"ablations.csv": rows, "earns_its_place.csv": earned}
    write_results(folder, {name: csv_text(name, round_figures(table)) for name, table in tables.items()})


def _paired(name: str, base: Iterable[Episode], ablated: Iterable[Episode]) -> tuple[FloatArray, FloatArray]:
    """Mean success per task of both, over tasks on which both could be measured."""
    of_base, of_ablated = _by_cell(base), _by_cell(ablated)
    if of_base.keys() != of_ablated.keys():
        only = sorted(of_base.keys() ^ of_ablated.keys())[0]
        raise InputError(f"ablation {name}: task {only[0]} with seed {only[1]} was played on one side only")
    tasks: dict[str, list[tuple[float, float]]] = {}
    for (task, seed), success in of_base.items():
        other = of_ablated[task, seed]
        if success is not None and other is not None:
            tasks.setdefault(task, []).append((success, other))
    if not tasks:
        raise EmptyResult(f"ablation {name}: every episode ended in a fault of the world")
    means = np.array([np.mean(pairs, axis=0) for _, pairs in sorted(tasks.items())])
    return means[:, 0], means[:, 1]


def _by_cell(episodes: Iterable[Episode]) -> dict[tuple[str, int], float | None]:
    return {
        (e.metadata.task_id, e.metadata.seed): None if e.env_fault is not None else float(e.success) for e in episodes
    }
