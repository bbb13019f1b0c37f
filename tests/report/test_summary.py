"""The summary is small, complete, and says nothing that is in no table."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

from r2v.report.sources import read_sources
from r2v.report.summary import SUMMARY_BYTES, llm_summary, results_page


def test_it_holds_every_row_and_every_claim_with_its_interval(micro_results: Path, micro_report: Path) -> None:
    text = (micro_report / "llm_summary.json").read_text()
    summary = json.loads(text)
    assert len(text.encode()) <= SUMMARY_BYTES and {"ablations", "frontier"} <= set(summary)
    with (micro_results / "structured_results" / "main_table.csv").open(newline="") as file:
        rows = {(row["method"], row["condition"]): row for row in csv.DictReader(file)}
    table = summary["main_table"]
    shown = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert {(row["method"], row["condition"]) for row in shown} == set(rows)
    for row in shown:
        success = float(rows[row["method"], row["condition"]]["success_rate"])
        assert abs(row["success_rate"] - success) <= 5e-4 * abs(success)
    claims = [dict(zip(summary["claims"]["columns"], row, strict=True)) for row in summary["claims"]["rows"]]
    assert all(
        row["ci_lower"] <= row["difference"] <= row["ci_upper"] for row in claims if row["difference"] is not None
    )
    assert any(row["difference"] is not None for row in claims)
    page = (micro_report / "results.md").read_text()
    assert all(row["claim"] in page for row in claims) and "## Ablations" in page


def test_what_does_not_fit_is_named(micro_results: Path) -> None:
    sources = read_sources(micro_results)
    much = replace(sources, tables={**sources.tables, "frontier.csv": sources.tables["frontier.csv"] * 100})
    text = llm_summary(much)
    summary = json.loads(text)
    assert len(text.encode()) <= SUMMARY_BYTES and "frontier" not in summary and "per_category" in summary
    assert any("frontier.csv" in line for line in summary["not_here"])
    assert "# Results on desk" in results_page(much)
