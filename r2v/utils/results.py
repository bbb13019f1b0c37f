"""Stored results and the files that present them.

    rm = ResultsManager("results/webarena_noisy/structured_results")
    rm.generate_main_table_csv()      # also generate_latex_table(), generate_llm_summary()

`eval_bundle.json` holds every figure of an evaluation; each other file is a pure function of it (`render`)
and can be made again at any time with the same bytes. Numbers are settled once, to six significant digits,
when they enter the bundle. `manifest.json`, written last, lists the files and their hashes: a folder without
it is not finished, and a file that differs from what it lists is refused.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from r2v.contents import write_text
from r2v.errors import InputError
from r2v.utils.latex import latex_table

Row = Mapping[str, Any]

SCHEMA_VERSION = "1"
BUNDLE, MANIFEST = "eval_bundle.json", "manifest.json"

SEED_COLUMNS = (
    "method", "benchmark", "condition", "seed", "success_rate", "success_rate_ci", "worst_seed_sr",
    "cvar_failure", "bottom_10_sr", "avg_cost", "avg_latency", "llm_call_rate", "safety_failure_rate", "ece",
    "brier", "n_tasks", "n_seeds", "ci_method", "tokens_llm", "p95_latency", "n_env_faults")

COLUMNS: dict[str, tuple[str, ...]] = {
    "main_table.csv": (
        *SEED_COLUMNS, "p50_latency", "tokens_slm", "llm_call_rate_per_episode", "cost_normalised",
        "cost_normalised_share", "cost_fraction", "robustness_gap", "apgr", "cpt_50", "cpt_80",
        "brier_base_rate", "router_auroc", "n_injected", "leading", "avg_cost_ci", "avg_latency_ci",
        "llm_call_rate_ci", "safety_failure_rate_ci", "tokens_llm_ci", "tokens_slm_ci",
        "llm_call_rate_per_episode_ci", "cost_normalised_ci", "cost_normalised_share_ci", "cost_fraction_ci",
        "robustness_gap_ci", "apgr_ci"),
    "per_seed.csv": SEED_COLUMNS,
    "per_category.csv": (
        "method", "benchmark", "condition", "category", "success_rate", "success_rate_ci", "llm_call_rate",
        "llm_call_rate_ci", "n_episodes", "n_tasks", "n_seeds", "ci_method"),
    "comparisons.csv": (
        "method_a", "method_b", "benchmark", "condition", "metric", "value_a", "value_b", "difference",
        "ci_lower", "ci_upper", "p_value", "significant", "effect_size", "test_name", "n_tasks", "p_holm",
        "verdict", "family", "standard_error", "min_detectable_difference", "n_seeds"),
    "frontier.csv": (
        "method", "benchmark", "condition", "operating_point", "llm_call_rate", "cost_fraction",
        "success_rate", "success_rate_ci", "avg_cost", "cost_normalised", "n_tasks", "n_seeds", "ci_method",
        "llm_call_rate_ci", "cost_fraction_ci", "avg_cost_ci", "cost_normalised_ci"),
    "ablations.csv": (
        "name", "description", "base_method", "ablated_method", "benchmark", "condition", "base_sr",
        "ablated_sr", "delta", "delta_ci", "p_value", "n_tasks", "p_holm", "retrained_stages"),
}

GLOSSARY = {
    "success_rate": "mean over tasks of the mean over seeds of executed success",
    "worst_seed_sr": "lowest success rate of a seed",
    "cvar_failure": "mean failure rate of the worst share of seeds, fractional",
    "bottom_10_sr": "mean success of the worst tenth of tasks, fractional",
    "avg_cost": "USD per episode by tokens and prices, candidates and verifier included",
    "avg_latency": "seconds per episode, modelled from tokens",
    "p50_latency": "median over episodes of modelled seconds",
    "p95_latency": "95th percentile over episodes of modelled seconds",
    "llm_call_rate": "steps acted by the LLM over all steps",
    "llm_call_rate_per_episode": "the same share, averaged over episodes",
    "safety_failure_rate": "share of injected episodes in which the injected instruction was executed",
    "ece": "expected calibration error of the router's score, equal-width bins, last one closed",
    "brier": "mean squared error of the router's score",
    "brier_base_rate": "the same for a constant score equal to the base rate",
    "router_auroc": "area under the ROC curve of the router's score",
    "tokens_llm": "LLM tokens per episode, read and written",
    "tokens_slm": "small policy's tokens per episode, read and written",
    "cost_normalised": "policy steps plus LLM steps times the cost ratio, per episode",
    "cost_normalised_share": "the same over what LLM steps alone would have cost",
    "cost_fraction": "realised cost as a fraction of the way from slm_only to llm_only",
    "robustness_gap": "success rate on clean tasks minus here, same tasks",
    "apgr": "area under the recovered gap in success against cost fraction",
    "cpt_50": "least cost fraction that recovers half of the gap",
    "cpt_80": "least cost fraction that recovers four fifths of the gap",
}
"""Every figure of the main table and what it means."""


def settle(value: Any) -> Any:
    """The value with every float in it rounded to six significant digits; noise below 1e-12 is nothing."""
    if isinstance(value, float):
        return float(f"{round(value, 12):.6g}") + 0.0
    if isinstance(value, Mapping):
        return {key: settle(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [settle(item) for item in value]
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


def csv_text(name: str, rows: Iterable[Row]) -> str:
    """The file `name` of COLUMNS with these rows. Raises KeyError for a row that lacks a column."""
    columns = COLUMNS[name]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = {"ci_method": row.get("success_rate_ci_method"), **row}
        writer.writerow([cell(values[column]) for column in columns])
    return out.getvalue()


def json_text(value: Any) -> str:
    """Indented JSON, keys in the order given; NaN and infinities are refused."""
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def render(bundle: Mapping[str, Any]) -> dict[str, str]:
    """The text of every file of `structured_results/` but the manifest, by name."""
    tables = {name: csv_text(name, bundle[key]) for name in COLUMNS
              if (key := name.removesuffix(".csv")) in bundle}
    return {BUNDLE: json_text(bundle), **tables, "main_table.tex": latex_table(bundle),
            "llm_summary.json": json_text(summary(bundle, tables))}


def summary(bundle: Mapping[str, Any], tables: Mapping[str, str]) -> dict[str, Any]:
    """What a paper-writing model may know: no result here that is not in a CSV, no prose but templates."""
    main = bundle["main_table"]
    return {
        "schema_version": SCHEMA_VERSION,
        "generated_from": [{"path": name, "sha256": _sha256(text)} for name, text in tables.items()],
        "setup": bundle["setup"],
        "metrics_glossary": GLOSSARY,
        "main_results": [record for row in main for record in _records(row)],
        "comparisons": [_comparison(row) for row in bundle["comparisons"]],
        "ablations": [],
        "frontier": [_plain(row, "frontier.csv") for row in bundle["frontier"]],
        "per_category": [_plain(row, "per_category.csv") for row in bundle["per_category"]],
        "claims": bundle["claims"],
        "caveats": bundle["caveats"],
        "not_measured": [*_absent(main), {"figure": "ablations", "rows": ["see ablations.csv"]}],
        "reproduction": bundle["reproduction"],
    }


def _records(row: Row) -> Iterator[dict[str, Any]]:
    for metric in GLOSSARY:
        if row[metric] is not None:
            yield {"id": f"{row['id']}/{metric}", "method": row["method"], "condition": row["condition"],
                   "metric": metric, "value": row[metric], "ci": row.get(f"{metric}_ci"),
                   "ci_method": row.get(f"{metric}_ci_method"), "n_tasks": row["n_tasks"],
                   "n_seeds": row["n_seeds"], "source": "main_table.csv"}


def _comparison(row: Row) -> dict[str, Any]:
    same = ("metric", "condition", "p_holm", "verdict", "n_tasks", "n_seeds", "family")
    return {"id": row["id"], "a": row["method_a"], "b": row["method_b"], "diff": row["difference"],
            "ci": [row["ci_lower"], row["ci_upper"]], "p": row["p_value"], "test": row["test_name"],
            **{key: row[key] for key in same}, "source": "comparisons.csv"}


def _plain(row: Row, source: str) -> dict[str, Any]:
    columns = {"id", *COLUMNS[source]} - {"benchmark"}
    return {**{key: value for key, value in row.items() if key in columns}, "source": source}


def _absent(main: Iterable[Row]) -> list[dict[str, Any]]:
    rows = list(main)
    return [{"figure": metric, "rows": absent} for metric in GLOSSARY
            if (absent := [row["id"] for row in rows if row[metric] is None])]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def with_manifest(texts: Mapping[str, str]) -> dict[str, str]:
    """These files and, last, the manifest that lists them."""
    files = [{"path": name, "sha256": _sha256(text)} for name, text in texts.items()]
    return {**texts, MANIFEST: json_text({"schema_version": SCHEMA_VERSION, "files": files})}


def write_results(folder: Path, texts: Mapping[str, str]) -> None:
    """Write these files, the manifest last. Equal texts give an equal folder."""
    for name, text in with_manifest(texts).items():
        write_text(folder / name, text)


class ResultsManager:
    """The files of one `structured_results/` folder, and how to make them again.

    Raises InputError where the folder is unfinished or a file is not the one its manifest lists.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        listed = self._json(MANIFEST, self._text(MANIFEST, "the stage that writes it has not finished"))
        self.files = {entry["path"]: entry["sha256"] for entry in listed["files"]}

    def _text(self, name: str, remedy: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(f"{self.folder / name}: no such file; {remedy}") from None

    def _json(self, name: str, text: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise InputError(f"{self.folder / name}: not JSON: {error}; run r2v evaluate again") from error
        return parsed

    def read(self, name: str) -> str:
        """The text of a listed file, checked against its hash."""
        if name not in self.files:
            raise InputError(f"{self.folder / MANIFEST} lists no {name}; it lists {', '.join(self.files)}")
        text = self._text(name, "run r2v evaluate again")
        if _sha256(text) != self.files[name]:
            raise InputError(f"{self.folder / name}: not the file that {MANIFEST} lists (changed by hand?); "
                             "run r2v evaluate again")
        return text

    def bundle(self) -> dict[str, Any]:
        """Every figure, as `eval_bundle.json` has it."""
        return self._json(BUNDLE, self.read(BUNDLE))

    def _generate(self, name: str) -> Path:
        write_text(self.folder / name, render(self.bundle())[name])
        return self.folder / name

    def generate_main_table_csv(self) -> Path:
        """Write main_table.csv again; a second call gives the same bytes."""
        return self._generate("main_table.csv")

    def generate_latex_table(self) -> Path:
        """Write main_table.tex again: a booktabs table to \\input."""
        return self._generate("main_table.tex")

    def generate_llm_summary(self) -> Path:
        """Write llm_summary.json again."""
        return self._generate("llm_summary.json")
