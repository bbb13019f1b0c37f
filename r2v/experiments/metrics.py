"""Metrics of a run: the figures in its folder.

metrics.json      {"accuracy": 0.93, "loss": 0.21}: final figures
metrics.jsonl     one such line per step; the last one counts without a metrics.json
outcomes.csv      unit,value: outcome of each task or example, by which runs are compared in pairs
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
    """Return the figures of a run, nested ones by dotted names, or an empty mapping without a file. Raise InputError
    for a damaged file."""
    for name in (METRICS, SERIES):
        path = folder / name
        try:
            lines = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            continue
        try:
            values = leaves(json.loads(lines if name == METRICS else lines.splitlines()[-1]))
            return {key: float(value) for key, value in values if _is_figure(value)}
        except (ValueError, IndexError, AttributeError, RecursionError):
            raise InputError(f"{path}: no JSON object of figures; run the point again") from None
    return {}


def metric_of(folder: Path, name: str) -> float:
    """Return one figure of a run. Raise InputError with the nearest name if it is missing."""
    figures = metrics_of(folder)
    if name not in figures:
        raise InputError(
            f"{folder}: no metric {name}; {nearest(name, figures) if figures else f'the run left no {METRICS}'}"
        )
    return figures[name]


def outcomes_of(folder: Path) -> dict[str, float]:
    """Return the outcomes of a run by unit, or an empty mapping without a file. Raise InputError for a damaged file."""
    try:
        with (folder / OUTCOMES).open(encoding="utf-8", newline="") as file:
            return {row["unit"]: float(row["value"]) for row in csv.DictReader(file)}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder / OUTCOMES}: not unit,value; run the point again") from None


def headline(folder: Path, metric: str | None) -> str:
    """Return a run's figure, or its first two, as text."""
    try:
        figures = metrics_of(folder)
    except InputError as error:
        return str(error)
    names = [metric] if metric in figures else list(figures)[:2]
    return "  ".join(f"{name}={figures[str(name)]:.4g}" for name in names)


def leaves(values: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every leaf of nested mappings; an empty mapping is a leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{stem}{key}.")
        else:
            yield f"{stem}{key}", value


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
