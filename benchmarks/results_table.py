"""Markdown table of a finished evaluation: means with intervals, and the success of each evaluation seed.

    python benchmarks/results_table.py results/mrp

Prints a Markdown row per method and condition: the mean with its 95 % interval as `structured_results/main_table.csv`
has it, and the success of each evaluation seed as `structured_results/per_seed.csv` has it.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

HEAD = (
    "method",
    "condition",
    "success",
    "of each seed",
    "LLM steps",
    "USD an episode",
    "cached",
    "cost fraction",
    "APGR",
)
COLUMNS = (
    ("success_rate", 3),
    ("llm_call_rate", 3),
    ("avg_cost", 4),
    ("avg_cost_cached", 4),
    ("cost_fraction", 2),
    ("apgr", 2),
)


def interval(row: dict[str, str], column: str, digits: int) -> str:
    """Return a mean with its interval, or "" if the table has no figure."""
    if not row[column]:
        return ""
    mean = f"{float(row[column]):.{digits}f}"
    low, high = (f"{bound:.{digits}f}" for bound in json.loads(row[f"{column}_ci"] or f"[{mean}, {mean}]"))
    return mean if low == high else f"{mean} [{low}, {high}]".replace("-0.00", "0.00")


def table(folder: Path) -> list[str]:
    """Return the lines of the table, conditions in the order of the file. `folder`: results, or their tables alone."""
    tables = folder / "structured_results" if (folder / "structured_results").exists() else folder
    with (tables / "per_seed.csv").open() as lines:
        per_seed = list(csv.DictReader(lines))
    rows = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    with (tables / "main_table.csv").open() as lines:
        for row in csv.DictReader(lines):
            same = [
                seed_row
                for seed_row in per_seed
                if (seed_row["method"], seed_row["condition"]) == (row["method"], row["condition"])
            ]
            seeds = ", ".join(f"{float(seed_row['success_rate']):.3f}" for seed_row in same)
            success, *others = (interval(row, column, digits) for column, digits in COLUMNS)
            rows.append("| " + " | ".join((row["method"], row["condition"], success, seeds, *others)) + " |")
    return rows


if __name__ == "__main__":
    print("\n".join(table(Path(*sys.argv[1:2]))))
