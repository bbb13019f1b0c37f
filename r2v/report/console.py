"""The closing lines of a run: its headline, r2v against every other router, and the paths of the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from r2v.config.methods import OURS, ROUTERS, STRONG, WEAK
from r2v.console import text_table
from r2v.evaluation.claims import ConditionRows, headline, rows_by_condition
from r2v.evaluation.figure_text import decimals, dollars, four_decimals
from r2v.evaluation.measures.comparisons import AT_COST
from r2v.evaluation.tables.files import BUNDLE
from r2v.report.sources import csv_rows
from r2v.report.story import Lead, leads
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

_SHORT = {AT_COST: "success", "apgr": "APGR"}
_LEGEND = (
    "success: of the other router, for the dollars that r2v spends. APGR: over all budgets. [95 % interval over tasks]",
    "ahead, behind: r2v's lead, where the interval leaves 0 out and Holm's p is at most .05. from: the least lead that",
    "the test finds with 80 % power. One training run: seeds and machines differ by more (docs/results.md).",
)


def main_table(path: Path) -> str:
    """Return the main table's most read columns, aligned, with an empty line between conditions."""
    cells = [[title for _, title in _COLUMNS]]
    for _, rows in groupby(csv_rows(path.read_text()), key=lambda row: row["condition"]):
        cells += [[], *([four_decimals(row.get(name, "")) for name, _ in _COLUMNS] for row in rows)]
    return text_table(cells, right=range(2, len(_COLUMNS)))


def closing_lines(results: Path, folders: Iterable[tuple[str, Path]], page: Path | None) -> str:
    """Return the closing lines of a run; `page`: that of its report, None without one."""
    tables = results / "structured_results"
    # a run that writes only a table has no bundle; without r2v there is nothing to compare
    bundle = ResultsManager(tables).bundle() if (tables / BUNDLE).exists() else {"comparisons": []}
    compared = _comparison_lines(bundle) if bundle["comparisons"] else [main_table(tables / "main_table.csv")]
    return "\n".join(
        [
            *compared,
            "",
            *(f"  {what:<12} {folder}" for what, folder in folders if folder.exists()),
            f"  every row    {tables / 'results.md'}",
            f"  check it     r2v verify-results {results}",
            f"  look at it   {f'file://{page.absolute()}' if page else f'r2v report {results}'}",
        ]
    )


def _comparison_lines(bundle: Mapping[str, Any]) -> list[str]:
    """Return the headline, and for each condition a table of r2v against every other router."""
    lines = headline(bundle)
    by_pair = leads(bundle["comparisons"])
    for condition, rows in rows_by_condition(bundle).items():
        lines += ["", f"{condition}, {_ends(rows, bundle['setup']['n_seeds'])}"]
        routers = {other: by for (name, other), by in by_pair.items() if name == condition and other in ROUTERS}
        metrics = [name for name in (AT_COST, "apgr") if any(name in by for by in routers.values())]
        lines += [_router_table(routers, metrics)] if metrics else []
    return [*lines, "", *_choice_lines(bundle), *_LEGEND]


def _choice_lines(bundle: Mapping[str, Any]) -> list[str]:
    """Return a line for each operating point at which r2v acts by another score than its own."""
    rows = bundle.get("choices", [])
    own = {row["operating_point"]: row["success"] for row in rows if row["score"] == OURS}
    others = [row for row in rows if row["acts"] and row["score"] != OURS]
    if rows and not others:
        return [f"On {rows[0]['n_tasks']} calibration tasks no other score was preferred to r2v's own (choices.csv)."]
    return [
        f"At {row['operating_point']} r2v acts by the score of {row['score']}: {decimals(row['success'], 3)} of "
        f"{row['n_tasks']} calibration tasks, by its own {decimals(own[row['operating_point']], 3)} (choices.csv)."
        for row in others
    ]


def _ends(rows: ConditionRows, num_seeds: int) -> str:
    """Return the number of tasks, then success and cost of both models alone and of r2v."""
    parts = []
    for method, name in ((WEAK, "small policy"), (STRONG, "LLM"), (OURS, OURS)):
        success, usd = rows.value(method, "success_rate"), rows.value(method, "avg_cost_cached")
        if success is not None and usd is not None:
            parts.append(f"{name} {decimals(success, 3)} for {dollars(usd)}")
    num_tasks = max(row["n_tasks"] for row in rows.main.values())
    seeds = f"{num_seeds} seeds" if num_seeds > 1 else "one seed"
    return f"{num_tasks} tasks x {seeds}: {', '.join(parts)} an episode"


def _router_table(routers: Mapping[str, Mapping[str, Lead]], metrics: Sequence[str]) -> str:
    """Return a table of a line for each router, the metrics side by side."""
    lines = [["  r2v against"], *([f"  {other}"] for other in routers)]
    for metric in metrics:
        column = [by.get(metric) for by in routers.values()]
        ours = next(lead.ours for lead in column if lead)
        lines[0] += [_SHORT[metric], f"r2v's {ours} leads by", "", "from"]
        for line, lead in zip(lines[1:], column, strict=True):
            line += [lead.theirs, lead.difference, lead.verdict, lead.shows_from] if lead else [""] * 4
    return text_table(lines, right=(1, 4, 5, 8))
