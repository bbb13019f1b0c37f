"""Results files: every file of `structured_results/` is a pure function of one bundle of figures.

`eval_bundle.json` holds every figure of an evaluation; each other file is rendered from it and can be made again at
any time with the same bytes. Numbers are settled once, to six significant digits, when they enter the bundle.
`manifest.json`, written last, lists the files and their hashes.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from r2v.console import printable
from r2v.evaluation.tables.columns import COLUMNS, RenderedRow
from r2v.evaluation.tables.latex import latex_table
from r2v.evaluation.tables.summary import llm_summary, results_page
from r2v.storage.files import write_text

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


def json_text(value: Any) -> str:
    """Indented JSON, keys in the order given; NaN and infinities are refused."""
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


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
