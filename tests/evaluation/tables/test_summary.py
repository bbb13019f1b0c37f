"""The summary is small, complete, and contains no figure that is in no table."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from r2v.evaluation.tables.build import build_tables
from r2v.evaluation.tables.files import render
from r2v.evaluation.tables.summary import SUMMARY_BYTES, WITHOUT_ABLATIONS, llm_summary, results_page

ABLATIONS = [
    {"name": "no_dpo", "condition": "noisy", "delta": "-0.25", "delta_ci": "[-0.5, 0]", "p_holm": "", "n_tasks": "60"}
]
"""Rows as in ablations.csv."""


@pytest.fixture(scope="module")
def bundle(episodes, setup):
    return build_tables(iter(episodes), setup).bundle()


def rows_of(table):
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def numbers(value):
    """Yield every number in a JSON value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)


def test_no_number_of_it_is_absent_from_the_csvs(bundle):
    texts = render(bundle)
    printed = {
        float(f"{float(found):.4g}")
        for name, text in texts.items()
        if name.endswith(".csv")
        for line in csv.reader(io.StringIO(text))
        for value in line
        for found in re.findall(r"(?<![\w.])-?\d+\.?\d*", value)
    }
    summary = json.loads(texts["llm_summary.json"])
    scores = [row for row in rows_of(summary["claims"]) if row["claim"].startswith("the score of")]
    brier = {row["difference"] for row in scores}  # a difference of two columns of the main table
    told = {one for part in ("main_results", "frontier", "per_category", "claims") for one in numbers(summary[part])}
    assert len(told) > 20 and told - brier <= printed


def test_every_method_and_every_claim_with_its_interval_is_there(bundle):
    summary = json.loads(llm_summary(bundle, ABLATIONS, ()))
    shown = rows_of(summary["main_results"])
    assert {(row["method"], row["condition"]) for row in shown} == {
        (row["method"], row["condition"]) for row in bundle["main_table"]
    }
    claims = rows_of(summary["claims"])
    assert len(claims) == len(bundle["claims"]) and all(row["difference"] is not None for row in claims)
    assert all(
        row["ci_lower"] <= row["difference"] <= row["ci_upper"]
        for row in claims
        if not row["claim"].startswith("the score of")
    )
    assert rows_of(summary["ablations"]) == [
        {"name": "no_dpo", "condition": "noisy", "delta": -0.25, "delta_ci": [-0.5, 0], "n_tasks": 60}
    ]
    assert summary["not_here"] == [] and {"frontier", "per_category"} <= set(summary)
    page = results_page(bundle, ABLATIONS, ())
    assert all(row["claim"] in page for row in claims) and "## Ablations" in page and "[-0.5, 0]" in page


def test_a_p_that_the_draws_set_is_no_number(bundle):
    rows = [{**row, "p_holm": p} for row, p in zip(bundle["comparisons"], (0.0018, 0.25), strict=False)]
    summary = json.loads(llm_summary({**bundle, "comparisons": [*rows, *bundle["comparisons"][2:]]}))
    assert [row["p_holm"] for row in rows_of(summary["claims"])][:2] == ["< 0.01", 0.25]


def test_what_is_not_there_or_does_not_fit_is_named(bundle):
    assert WITHOUT_ABLATIONS in json.loads(llm_summary(bundle))["not_here"]
    assert WITHOUT_ABLATIONS in results_page(bundle)
    text = llm_summary({**bundle, "frontier": bundle["frontier"] * 300})
    summary = json.loads(text)
    assert len(text.encode()) <= SUMMARY_BYTES and "frontier" not in summary and "per_category" in summary
    assert any("frontier.csv" in line for line in summary["not_here"])


@pytest.mark.parametrize("name", ["nan", "inf", "-Infinity", "1e999"])
def test_a_name_that_reads_as_no_finite_number_stays_a_name(bundle, name):
    summary = json.loads(llm_summary(bundle, [{**ABLATIONS[0], "name": name}]))
    assert [row["name"] for row in rows_of(summary["ablations"])] == [name]
