"""The closing lines of a run: the main table, what its size can show, and where everything lies."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from r2v.console import text_table
from r2v.evaluation.comparisons import detectable
from r2v.utils.results import ResultsManager

_COLUMNS = (
    ("method", "method"),
    ("condition", "cond."),
    ("success_rate", "success"),
    ("success_rate_ci", "95 % interval"),
    ("llm_call_rate", "LLM steps"),
    ("avg_cost", "USD/episode"),
    ("avg_cost_cached", "cached"),
    ("cost_fraction", "cost fraction"),
    ("apgr", "APGR"),
)


def main_table(path: Path) -> str:
    """The main table's most read columns, aligned; an empty line between conditions."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells: list[list[str]] = [[title for _, title in _COLUMNS]]
    before = None
    for row in rows:
        if row["condition"] != before:
            cells.append([])
        cells.append([_short(row.get(name, "")) for name, _ in _COLUMNS])
        before = row["condition"]
    return text_table(cells, right=range(2, len(_COLUMNS)))


def _short(text: str) -> str:
    """A CSV cell with its numbers cut to four decimals."""
    parts = [part.strip("[] ") for part in text.split(",")]
    try:
        numbers = [f"{float(part):.4f}" for part in parts]
    except ValueError:
        return text
    return f"[{', '.join(numbers)}]" if text.startswith("[") else numbers[0]


def closing_lines(results: Path, places: Iterable[tuple[str, Path]], page: Path | None) -> str:
    """What a run ends with; `page` is that of its report, if there is one."""
    tables = results / "structured_results"
    compared = (tables / "comparisons.csv").exists()  # nothing is where a table is all that a run writes
    shown = detectable(ResultsManager(tables).bundle()["comparisons"]) if compared else None
    return "\n".join(
        [
            main_table(tables / "main_table.csv"),
            "",
            *([f"  {shown}", ""] if shown else []),
            *(f"  {what:<12} {place}" for what, place in places),
            f"  check it     r2v verify-results {results}",
            f"  look at it   {f'file://{page.absolute()}' if page else f'r2v report {results}'}",
        ]
    )
