"""Results files: every file of `structured_results/` is a pure function of one bundle of figures.

`eval_bundle.json` holds every figure of an evaluation; each other file is rendered from it and can be made again at
any time with the same bytes. Numbers are settled once, to six significant digits, when they enter the bundle.
`manifest.json`, written last, lists the files and their hashes. The LaTeX table needs booktabs alone; its
numbers have a fixed number of decimals and are right-aligned, so their points align; a rate without a single failure
(or success) is printed as the bound that its interval allows, never as 100 or 0 per cent.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from r2v.console import printable
from r2v.evaluation.tables.columns import COLUMNS, RenderedRow
from r2v.evaluation.tables.summary import llm_summary, results_page
from r2v.storage.files import json_text, write_text

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{c: "\\" + c for c in "_%&#${}"},
}

_HEADER = (
    ("Method", ""),
    (r"\multicolumn{2}{c}{Success $\uparrow$}", r"\multicolumn{2}{c}{(\%)}"),
    (r"Worst $\uparrow$", r"(\%)"),
    (r"LLM $\downarrow$", r"(\%)"),
    (r"\multicolumn{2}{c}{Cost $\downarrow$}", r"\multicolumn{2}{c}{(USD)}"),
    (r"p95 $\downarrow$", "(s)"),
    (r"Unsafe $\downarrow$", r"(\%)"),
    (r"Brier $\downarrow$", ""),
)
_COLUMNS = "lr@{~}lrrr@{/}rrrr"


def escape(text: str) -> str:
    """Text with LaTeX's special characters made harmless."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def latex_table(bundle: Mapping[str, Any]) -> str:
    """A table environment of the bundle's main table, a block of rows for each condition."""
    blocks = [list(rows) for _, rows in groupby(bundle["main_table"], key=lambda row: row["condition"])]
    body = [line for block in blocks for line in _block(block)]
    head = [" & ".join(cells) + r" \\" for cells in zip(*_HEADER, strict=True)]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            r"\caption{" + _caption(bundle) + "}",
            r"\label{tab:main}",
            r"\scriptsize",
            r"\setlength{\tabcolsep}{2.5pt}",
            r"\begin{tabular}{" + _COLUMNS + "}",
            r"\toprule",
            *head,
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _caption(bundle: Mapping[str, Any]) -> str:
    setup = bundle["setup"]
    return (
        f"Executed results on {escape(setup['benchmark'])}, mean over {setup['n_seeds']} seeds, with "
        f"{_number(setup['level'], 100, 0)}\\,\\% intervals in brackets: bootstrap over tasks "
        f"({setup['resamples']:,} resamples), Wilson where it has nothing to resample. "
        r"$\geq$ and $\leq$: bound of the interval where no failure, or no success, was seen. "
        r"Bold: the best router and all that are not significantly worse (sign-flip test over tasks, Holm, "
        r"5\,\%). Worst: the lowest seed. LLM: steps taken by the LLM. Cost: of 1,000 episodes, at "
        r"list prices / with the prompt cache of the LLM's endpoint. p95: latency modelled from tokens. Unsafe: "
        r"injected instructions that were executed."
    )


def _block(rows: list[RenderedRow]) -> list[str]:
    width = sum(column in "lr" for column in re.sub(r"@\{.*?\}", "", _COLUMNS))
    title = f"{escape(rows[0]['condition'])}: {max(row['n_tasks'] for row in rows)} tasks"
    return [
        r"\midrule",
        rf"\multicolumn{{{width}}}{{l}}{{\emph{{{title}}}}} \\",
        rf"\cmidrule(lr){{1-{width}}}",
        *(_line(row) for row in rows),
    ]


def _line(row: RenderedRow) -> str:
    decimals = 1 if row["n_tasks"] < 1000 else 2
    interval = row["success_rate_ci"]
    success = _rate(row["success_rate"], interval, decimals)
    worst_is_all = row["worst_seed_sr"] == row["success_rate"]
    cells = (
        escape(row["method"]),
        rf"\textbf{{{success}}}" if row["leading"] else success,
        "" if interval is None else f"[{', '.join(_number(end, 100, decimals) for end in interval)}]",
        _rate(row["worst_seed_sr"], interval if worst_is_all else None, decimals),
        _number(row["llm_call_rate"], 100, decimals),
        _number(row["avg_cost"], 1000, 2),
        _number(row["avg_cost_cached"], 1000, 2),
        _number(row["p95_latency"], 1, 1),
        _rate(row["safety_failure_rate"], row["safety_failure_rate_ci"], decimals),
        _number(row["brier"], 1, 3),
    )
    return " & ".join(cells) + r" \\"


def _rate(value: float | None, interval: list[float] | None, decimals: int) -> str:
    if interval is not None and value == 1:
        return r"$\geq$" + _number(interval[0], 100, decimals)
    if interval is not None and value == 0:
        return r"$\leq$" + _number(interval[1], 100, decimals)
    return _number(value, 100, decimals)


def _number(value: float | None, scale: float, decimals: int) -> str:
    return "--" if value is None else f"{value * scale:.{decimals}f}"


BUNDLE_SCHEMA = "1"
BUNDLE, RESULTS_MANIFEST = "eval_bundle.json", "manifest.json"


def round_figures(value: Any) -> Any:
    """The value with every float in it rounded to six significant digits; noise below 1e-12 is nothing."""
    if isinstance(value, float):
        return float(f"{round(value, 12):.6g}") + 0.0
    if isinstance(value, Mapping):
        return {key: round_figures(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [round_figures(item) for item in value]
    return value


def cell(value: Any) -> str:
    """One value of a CSV: empty for None, true or false, plain decimals without exponent, [low, high]."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(cell(item) for item in value) + "]"
    return str(value)


def csv_text(name: str, rows: Iterable[RenderedRow]) -> str:
    """The file `name` of COLUMNS with these rows. Raises KeyError for a row that lacks a column."""
    columns = COLUMNS[name]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = {"ci_method": row.get("success_rate_ci_method"), **row}
        writer.writerow([printable(cell(values[column])) for column in columns])
    return out.getvalue()


def render(bundle: Mapping[str, Any]) -> dict[str, str]:
    """The text of every file of `structured_results/` but the manifest, by name."""
    tables = {name: csv_text(name, bundle[key]) for name in COLUMNS if (key := name.removesuffix(".csv")) in bundle}
    return {
        BUNDLE: json_text(bundle),
        **tables,
        "main_table.tex": latex_table(bundle),
        "llm_summary.json": llm_summary(bundle),
        "results.md": results_page(bundle),
    }


def sha256_of(text: str) -> str:
    """Hex SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_manifest(texts: Mapping[str, str]) -> dict[str, str]:
    """These files and, last, the manifest that lists them."""
    files = [{"path": name, "sha256": sha256_of(text)} for name, text in texts.items()]
    return {**texts, RESULTS_MANIFEST: json_text({"schema_version": BUNDLE_SCHEMA, "files": files})}


def write_results(folder: Path, texts: Mapping[str, str]) -> None:
    """Write these files, the manifest last. Equal texts give an equal folder."""
    for name, text in with_manifest(texts).items():
        write_text(folder / name, text)
