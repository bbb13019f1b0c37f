"""The end of a run on the screen: the main table, and where everything lies."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

_COLUMNS = (
    ("method", "method"),
    ("condition", "cond."),
    ("success_rate", "success"),
    ("success_rate_ci", "95 % interval"),
    ("llm_call_rate", "LLM steps"),
    ("avg_cost", "USD/episode"),
    ("cost_fraction", "cost fraction"),
    ("apgr", "APGR"),
)


def main_table(path: Path) -> str:
    """The main table's most read columns, aligned."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = [[title for _, title in _COLUMNS], *([_short(row.get(name, "")) for name, _ in _COLUMNS] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(_COLUMNS))]
    lines = []
    for number, row in enumerate(shown):
        if number and row[1] != shown[number - 1][1]:
            lines.append("")
        lines.append(
            "  ".join(
                value.ljust(width) if column < 2 else value.rjust(width)
                for column, (value, width) in enumerate(zip(row, widths, strict=True))
            )
        )
    return "\n".join(lines)


def _short(text: str) -> str:
    """A CSV cell with its numbers cut to four decimals."""
    parts = [part.strip("[] ") for part in text.split(",")]
    try:
        numbers = [f"{float(part):.4f}" for part in parts]
    except ValueError:
        return text
    return f"[{', '.join(numbers)}]" if text.startswith("[") else numbers[0]


def closing_lines(results: Path, places: Iterable[tuple[str, Path]]) -> str:
    """What a run ends with."""
    table = results / "structured_results" / "main_table.csv"
    return "\n".join(
        [
            main_table(table),
            "",
            *(f"  {what:<12} {place}" for what, place in places),
            f"  check it     r2v verify-results {results}",
        ]
    )
