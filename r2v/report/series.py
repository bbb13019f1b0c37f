"""Series: the numbers behind each figure of the report, a list of rows that is also its CSV file.

A figure draws nothing that is not in its series, so a reader can redraw each of them. A figure without data has no
series.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from r2v.evaluation.tables.summary import ABLATIONS_FILE
from r2v.report.sources import LARGEST, Row, Sources

_BINS = 10


@dataclass(frozen=True, kw_only=True)
class Series:
    """The rows of one figure; all have the same columns."""

    rows: list[dict[str, Any]]
    source: str
    """The file that the rows were read from."""

    def csv(self) -> str:
        """Return the rows as a CSV file."""
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()


def grouped(rows: Iterable[dict[str, Any]], column: str) -> dict[Any, list[dict[str, Any]]]:
    """Return the rows by the value of a column, in their order."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def series(sources: Sources) -> dict[str, Series]:
    """Return the series of every figure that these results have data for, in the order of the page."""
    tables = "structured_results"
    makers: dict[str, tuple[Callable[[Sources], Iterable[dict[str, Any]]], str]] = {
        "frontier": (_frontier, f"{tables}/frontier.csv"),
        "success": (_success, f"{tables}/main_table.csv"),
        "categories": (_categories, f"{tables}/per_category.csv"),
        "ranking": (_ranking, "setup.json"),
        "reliability": (_reliability, "setup.json"),
        "ablations": (_ablations, f"ablations: {tables}/{ABLATIONS_FILE}"),
        "losses": (_losses, "bc_report.json, dpo_report.json"),
        "stages": (_stages, "outputs/.durations"),
    }
    by_figure = {name: Series(rows=list(make(sources)), source=source) for name, (make, source) in makers.items()}
    return {name: data for name, data in by_figure.items() if data.rows}


def _number(text: str | None) -> float | None:
    """Return the number in a cell of a CSV file; None for an empty cell. Raises ValueError for text, NaN and
    infinities."""
    number = float(text) if text else None
    if number is not None and not abs(number) <= LARGEST:
        raise ValueError(f"{text} is no figure")
    return number


def _with_interval(row: Row, column: str, name: str) -> dict[str, Any]:
    """Return a figure and both ends of its interval, "[low, high]"; None for each that is missing."""
    low, high = (row.get(f"{column}_ci") or ",").strip("[]").split(",")
    return {name: _number(row[column]), f"{name}_low": _number(low), f"{name}_high": _number(high)}


def _frontier(sources: Sources) -> Iterable[dict[str, Any]]:
    """Yield cost as billed and success of every operating point, and of the methods without one."""
    points = sources.tables.get("frontier.csv", [])
    drawn = {(row["condition"], row["method"]) for row in points}
    conditions = {row["condition"] for row in points or sources.tables["main_table.csv"]}
    alone = [
        {**row, "operating_point": "main"}
        for row in sources.tables["main_table.csv"]
        if row["condition"] in conditions and (row["condition"], row["method"]) not in drawn
    ]
    for row in (*points, *alone):
        billed = "avg_cost_cached" if row.get("avg_cost_cached") else "avg_cost"
        if not row[billed] or not row["success_rate"]:  # nothing was measured
            continue
        yield {
            "condition": row["condition"],
            "method": row["method"],
            "operating_point": row["operating_point"],
            **_with_interval(row, billed, "usd_per_episode"),
            **_with_interval(row, "success_rate", "success"),
            "llm_call_rate": _number(row["llm_call_rate"]),
        }


def _success(sources: Sources) -> Iterable[dict[str, Any]]:
    for row in sources.tables["main_table.csv"]:
        yield {
            "condition": row["condition"],
            "method": row["method"],
            **_with_interval(row, "success_rate", "success"),
            "n_tasks": int(row["n_tasks"]),
        }


def _categories(sources: Sources) -> Iterable[dict[str, Any]]:
    rows = sources.tables.get("per_category.csv", [])
    hit = {row["condition"] for row in rows if row["category"] != "none"}
    for row in rows:
        if row["condition"] not in hit:
            continue
        yield {
            "condition": row["condition"],
            "category": row["category"],
            "method": row["method"],
            **_with_interval(row, "success_rate", "success"),
            "n_episodes": int(row["n_episodes"]),
        }


def _bins(sources: Sources) -> Iterable[dict[str, Any]]:
    """Yield each router's scores in bins of equal counts, with the share of steps where asking the LLM was right."""
    for scores in sources.setup.router_scores:
        p, y = np.asarray(scores.p), np.asarray(scores.y)
        start = 0
        for number, part in enumerate(np.array_split(np.argsort(p, kind="stable"), min(_BINS, len(p)))):
            yield {
                "condition": scores.condition,
                "method": scores.method,
                "bin": number,
                "rank": round((start + len(part) / 2) / len(p), 6),
                "mean_score": round(float(p[part].mean()), 6),
                "share_right": round(float(y[part].mean()), 6),
                "n_steps": len(part),
            }
            start += len(part)


def _ranking(sources: Sources) -> Iterable[dict[str, Any]]:
    """Return every router's bins by rank: entropies, random draws and disagreements share no scale."""
    return ({name: row[name] for name in row if name != "mean_score"} for row in _bins(sources))


def _reliability(sources: Sources) -> Iterable[dict[str, Any]]:
    """Yield the bins of scores that are probabilities, which are those with a Brier score."""
    claimed = {(row["condition"], row["method"]) for row in sources.tables["main_table.csv"] if row.get("brier")}
    for row in _bins(sources):
        if (row["condition"], row["method"]) in claimed:
            yield {name: row[name] for name in row if name != "rank"}


def _ablations(sources: Sources) -> Iterable[dict[str, Any]]:
    for row in sources.tables.get(ABLATIONS_FILE, []):
        yield {
            "condition": row["condition"],
            "name": row["name"],
            "description": row["description"],
            **_with_interval(row, "delta", "difference"),
            "p_holm": _number(row["p_holm"]),
        }


def _losses(sources: Sources) -> Iterable[dict[str, Any]]:
    for stage in sources.stages:
        for row in stage.losses:
            yield {"stage": stage.job, "step": int(row["step"]), "loss": float(row["loss"])}


def _stages(sources: Sources) -> Iterable[dict[str, Any]]:
    for stage in sources.stages:
        took = stage.duration
        yield {
            "stage": stage.job,
            "hours": None if took is None else round(took.seconds / 3600, 5),
            "cpu_hours": None if took is None else round(took.cpu_seconds / 3600, 5),
            "device": None if took is None else took.device,
            "usd": stage.dollars,
            "artifact": f"{stage.job}-{stage.fingerprint}",
        }
