"""Summary: all results on one page, for a model that writes a paper and for the one who checks it.

`llm_summary.json` holds every row that a results section needs, ablations and frontier too, in at most `SUMMARY_BYTES`:
each table once as columns and rows, each claim with the interval that it rests on. `results.md` says the same as a
page. Where everything is too much, whole tables are left out from the end and named with the CSV file that has them.
(`structured_results/llm_summary.json`, the evaluation's own, is made before there are ablations.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from r2v.evaluation.tables.columns import GLOSSARY
from r2v.report.sources import ABLATIONS_FILE, Row, Sources

SUMMARY_BYTES = 20_000
_MAIN = (
    "method",
    "condition",
    "success_rate",
    "success_rate_ci",
    "llm_call_rate",
    "avg_cost_cached",
    "avg_cost_cached_ci",
    "cost_fraction",
    "apgr",
    "safety_failure_rate",
    "n_tasks",
    "n_seeds",
)
_TABLES = {
    "ablations": (
        ABLATIONS_FILE,
        ("name", "condition", "base_sr", "ablated_sr", "delta", "delta_ci", "p_holm", "n_tasks"),
    ),
    "frontier": (
        "frontier.csv",
        ("method", "condition", "operating_point", "avg_cost_cached", "success_rate", "success_rate_ci"),
    ),
    "per_category": ("per_category.csv", ("method", "condition", "category", "success_rate", "success_rate_ci")),
}
"""After the main table and the claims, the most wanted first."""
_CLAIMED = ("claim", "verdict", "difference", "ci_lower", "ci_upper", "p_holm")


def llm_summary(sources: Sources) -> str:
    """The text of llm_summary.json."""
    whole: dict[str, Any] = {
        "setup": sources.bundle["setup"],
        "glossary": {name: text for name, text in GLOSSARY.items() if name in _MAIN},
        "main_table": _table(sources.tables["main_table.csv"], _MAIN),
        "claims": {"columns": list(_CLAIMED), "rows": [_settled(row) for row in _claims(sources)]},
        "caveats": [caveat["text"] for caveat in sources.bundle["caveats"]],
        "not_here": list(sources.missing),
        "reproduction": sources.bundle["reproduction"],
    }
    for name, (source, columns) in _TABLES.items():
        if rows := sources.tables.get(source):
            more = {**whole, name: _table(rows, columns)}
            fits = len(_text(more).encode()) <= SUMMARY_BYTES
            whole = more if fits else {**whole, "not_here": [*whole["not_here"], f"{name}: {len(rows)} rows, {source}"]}
    return _text(whole)


def _text(whole: Mapping[str, Any]) -> str:
    """As JSON, a row of a table on one line."""
    parts = []
    for name, value in whole.items():
        if isinstance(value, Mapping) and "rows" in value:
            rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in value["rows"])
            parts.append(f'{json.dumps(name)}:{{"columns":{json.dumps(value["columns"])},"rows":[\n{rows}]}}')
        else:
            parts.append(f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}")
    return "{" + ",\n".join(parts) + "}\n"


def _table(rows: Iterable[Row], columns: Sequence[str]) -> dict[str, Any]:
    found = list(rows)
    there = [name for name in columns if any(row.get(name) for row in found)]
    return {"columns": there, "rows": [_settled(row.get(name, "") for name in there) for row in found]}


def _settled(cells: Iterable[Any]) -> list[Any]:
    return [_number(cell) for cell in cells]


def _number(cell: Any) -> Any:
    """A cell as JSON, to four significant digits; text that is no number stays text, an empty one is null."""
    if isinstance(cell, str) and cell.startswith("["):
        return [_number(part.strip()) for part in cell.strip("[]").split(",")]
    try:
        value = float(f"{float(cell):.4g}")
    except (TypeError, ValueError):
        return cell or None
    return int(value) if value == int(value) else value


def _claims(sources: Sources) -> Iterable[list[Any]]:
    """Every claim in words, its verdict, and the comparison that it rests on first."""
    compared = {row["id"]: row for row in sources.bundle["comparisons"]}
    for claim in sources.bundle["claims"]:
        rests: dict[str, Any] = next((compared[one] for one in claim["evidence_ids"] if one in compared), {})
        figures = [rests.get(name) for name in _CLAIMED[2:]]
        yield [claim["text_template"].format(**claim["fields"]), claim["verdict"], *figures]


def results_page(sources: Sources) -> str:
    """The text of results.md."""
    setup, main = sources.bundle["setup"], _table(sources.tables["main_table.csv"], _MAIN)
    tasks = ", ".join(f"{count} {name}" for name, count in setup["n_tasks"].items())
    ablations = _table(sources.tables.get(ABLATIONS_FILE, []), _TABLES["ablations"][1])
    return "\n".join(
        [
            f"# Results on {setup['benchmark']}",
            "",
            f"Tasks: {tasks}; {setup['n_seeds']} seeds each; intervals of {setup['level']:.0%} over tasks. Every "
            "success was executed and replays.",
            "",
            *_markdown(main["columns"], main["rows"]),
            "",
            "## Claims",
            "",
            *_markdown(_CLAIMED, [_settled(row) for row in _claims(sources)]),
            "",
            *(
                ["## Ablations", "", *_markdown(ablations["columns"], ablations["rows"]), ""]
                if ablations["rows"]
                else []
            ),
            "## Caveats",
            "",
            *(f"- {caveat['text']}" for caveat in sources.bundle["caveats"]),
            *(f"- not here: {one}" for one in sources.missing),
            "",
        ]
    )


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(value: Any) -> str:
    text = "" if value is None else f"[{value[0]}, {value[1]}]" if isinstance(value, list) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
