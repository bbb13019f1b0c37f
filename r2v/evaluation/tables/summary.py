"""Summary: all results on one page, for a model that writes a paper and for its reviewer.

    llm_summary(bundle)                   # llm_summary.json of structured_results/
    llm_summary(bundle, ablations)        # the report's: the same with the ablations, which are a stage of their own

It holds every row that a results section needs in at most `SUMMARY_BYTES`: each table once as columns and rows, numbers
to four significant digits, each claim with the interval that it rests on. `results.md` has the same content as a page.
Above the limit whole tables are left out, the least important first, and named with the CSV file that has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from r2v.evaluation.figure_text import SMALLEST_P, claim_text, p_text
from r2v.evaluation.tables.columns import COLUMNS, GLOSSARY, RenderedRow

SUMMARY_BYTES = 20_000
ABLATIONS_FILE = "ablations.csv"
WITHOUT_ABLATIONS = f"ablations: another stage makes them, {ABLATIONS_FILE}; the summary of `r2v report` has them too"
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
_ABLATIONS = (
    *("name", "condition", "base_sr", "ablated_sr", "delta", "delta_ci", "p_holm", "min_detectable_difference"),
    *("cost_delta", "cost_delta_ci", "apgr_delta", "apgr_delta_ci", "n_tasks"),
)
_CHOICES = COLUMNS["choices.csv"]
_MORE = {
    "frontier": ("method", "condition", "operating_point", "avg_cost_cached", "success_rate", "success_rate_ci"),
    "per_category": ("method", "condition", "category", "success_rate", "success_rate_ci"),
}
"""After the main table, the claims and the ablations, the most wanted first."""
_CLAIMED = ("claim", "verdict", "difference", "ci_lower", "ci_upper", "p_holm")


def llm_summary(
    bundle: Mapping[str, Any],
    ablations: Sequence[RenderedRow] = (),
    missing: Sequence[str] = (WITHOUT_ABLATIONS,),
    audit: str | None = None,
) -> str:
    """The text of llm_summary.json. missing: names of absent sources. audit: "verified: ..." or "not verified: ...", of
    a report; None in the results folder itself."""
    whole: dict[str, Any] = {
        **({} if audit is None else {"audit": audit}),
        "setup": bundle["setup"],
        "metrics_glossary": {name: text for name, text in GLOSSARY.items() if name in _MAIN},
        "claims": {"columns": list(_CLAIMED), "rows": [_settled(row) for row in _claims(bundle)]},
        "caveats": [caveat["text"] for caveat in bundle["caveats"]],
        "not_here": list(missing),
        "reproduction": bundle["reproduction"],
    }
    tables = {
        "main_results": ("main_table.csv", _table(bundle["main_table"], _MAIN)),
        "ablations": (ABLATIONS_FILE, _table(ablations, _ABLATIONS)),
        **{name: (f"{name}.csv", _table(bundle[name], columns)) for name, columns in _MORE.items()},
    }
    for name, (source, table) in tables.items():
        if table["rows"]:
            more = {**whole, name: table}
            fits = len(_text(more).encode()) <= SUMMARY_BYTES
            line = f"{name}: {len(table['rows'])} rows, {source}"
            whole = more if fits else {**whole, "not_here": [*whole["not_here"], line]}
    return _text(whole)


def results_page(
    bundle: Mapping[str, Any],
    ablations: Sequence[RenderedRow] = (),
    missing: Sequence[str] = (WITHOUT_ABLATIONS,),
    audit: str | None = None,
) -> str:
    """The text of results.md; the parameters are those of `llm_summary`."""
    setup = bundle["setup"]
    tasks = ", ".join(f"{count} {name}" for name, count in setup.get("n_tasks", {}).items())
    blocks = [
        f"# Results on {setup['benchmark']}",
        f"Tasks: {tasks}; {setup['n_seeds']} seeds each; intervals of {setup['level']:.0%} over tasks. "
        + ("Every success was executed and replays." if audit is None else f"{audit[0].upper()}{audit[1:]}."),
        _markdown(_table(bundle["main_table"], _MAIN)),
        "## Claims",
        _markdown({"columns": _CLAIMED, "rows": [_settled(row) for row in _claims(bundle)]}),
        *(["## Ablations", _markdown(_table(ablations, _ABLATIONS))] if ablations else []),
        *(["## Frontier", _markdown(_table(bundle["frontier"], _MORE["frontier"]))] if bundle["frontier"] else []),
        *(["## Score that r2v acts by", _markdown(_table(bundle["choices"], _CHOICES))] if "choices" in bundle else []),
        "## Caveats",
        "\n".join(
            [*(f"- {caveat['text']}" for caveat in bundle["caveats"]), *(f"- not here: {source}" for source in missing)]
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _text(whole: Mapping[str, Any]) -> str:
    """As JSON, a row of a table on one line."""
    parts = []
    for name, value in whole.items():
        if isinstance(value, Mapping) and "rows" in value:
            rows = ",\n".join(_compact(row) for row in value["rows"])
            parts.append(f'{_compact(name)}:{{"columns":{_compact(value["columns"])},"rows":[\n{rows}]}}')
        else:
            parts.append(f"{_compact(name)}:{_compact(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _table(rows: Iterable[RenderedRow], columns: Sequence[str]) -> dict[str, Any]:
    """The columns that some row has a value for, and the rows; those of a CSV file do as well."""
    shown_rows = list(rows)
    there = [name for name in columns if any(row.get(name) not in (None, "") for row in shown_rows)]
    return {"columns": there, "rows": [_settled(row.get(name) for name in there) for row in shown_rows]}


def _settled(cells: Iterable[Any]) -> list[Any]:
    return [_number(cell) for cell in cells]


def _number(cell: Any) -> Any:
    """A cell as JSON, to four significant digits; text that is no finite number stays text, an empty one is null."""
    if isinstance(cell, str) and cell.startswith("["):
        cell = cell.strip("[]").split(",")
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        return [_number(part) for part in cell]
    try:
        value = float(f"{float(cell):.4g}")
    except (TypeError, ValueError):
        return cell or None
    if not math.isfinite(value):  # a category may be called nan, and JSON has no such number
        return str(cell)
    return int(value) if value == int(value) else value


def _claims(bundle: Mapping[str, Any]) -> Iterable[list[Any]]:
    """Every claim in words, its verdict, and the comparison that it rests on first; of r2v's score, which is compared
    with no method, how much lower its Brier score is."""
    compared = {row["id"]: row for row in bundle["comparisons"]}
    scored = {f"{row['id']}/brier": row for row in bundle["main_table"] if row.get("brier") is not None}
    for claim in bundle["claims"]:
        rests: Mapping[str, Any] = next(
            (compared[evidence_id] for evidence_id in claim["evidence_ids"] if evidence_id in compared), {}
        )
        *figures, p = (rests.get(name) for name in _CLAIMED[2:])
        for evidence_id in claim["evidence_ids"]:
            if evidence_id in scored:
                figures[0] = scored[evidence_id]["brier_base_rate"] - scored[evidence_id]["brier"]
        yield [
            claim_text(claim),
            claim["verdict"],
            *figures,
            p if p is None or p >= SMALLEST_P else p_text(p),
        ]


def _markdown(table: Mapping[str, Any]) -> str:
    lines = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    text = "" if value is None else f"[{value[0]}, {value[1]}]" if isinstance(value, list) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
