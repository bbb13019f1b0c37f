"""Metrics of a run: the figures that it leaves in its folder.

metrics.json      {"accuracy": 0.93, "loss": 0.21}: what the run came to
metrics.jsonl     the same, a line a step; its last line counts where there is no metrics.json
outcomes.csv      unit,value: what the run did on each task or example, by which runs are compared in pairs
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from r2v.errors import InputError, nearest

METRICS, SERIES, OUTCOMES = "metrics.json", "metrics.jsonl", "outcomes.csv"


def metrics_of(folder: Path) -> dict[str, float]:
    """The figures of a run, those within sections by dotted names; none where it left none. Raises InputError for a
    file that is damaged."""
    for name in (METRICS, SERIES):
        path = folder / name
        try:
            lines = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            continue
        try:
            found = leaves(json.loads(lines if name == METRICS else lines.splitlines()[-1]))
            return {key: float(value) for key, value in found if _is_figure(value)}
        except (ValueError, IndexError, AttributeError, RecursionError):
            raise InputError(f"{path}: no JSON object of figures; run the point again") from None
    return {}


def metric_of(folder: Path, name: str) -> float:
    """One figure of a run. Raises InputError, with the nearest name, where it left none of this name."""
    found = metrics_of(folder)
    if name not in found:
        raise InputError(
            f"{folder}: no metric {name}; {nearest(name, found) if found else f'the run left no {METRICS}'}"
        )
    return found[name]


def outcomes_of(folder: Path) -> dict[str, float]:
    """What a run did, by unit; none where it left none."""
    try:
        with (folder / OUTCOMES).open(encoding="utf-8", newline="") as file:
            return {row["unit"]: float(row["value"]) for row in csv.DictReader(file)}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder / OUTCOMES}: not unit,value; run the point again") from None


def headline(folder: Path, metric: str | None) -> str:
    """A run's figure, or its first two, as text."""
    try:
        found = metrics_of(folder)
    except InputError as error:
        return str(error)
    names = [metric] if metric in found else list(found)[:2]
    return "  ".join(f"{name}={found[str(name)]:.4g}" for name in names)


def leaves(values: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of everything within sections; an empty section is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{stem}{key}.")
        else:
            yield f"{stem}{key}", value


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
