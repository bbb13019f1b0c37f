"""Every figure of the hand-made evaluation (conftest), computed by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest

from r2v.evaluation.figure_text import claim_text
from r2v.evaluation.measures.statistics import wilson
from r2v.evaluation.tables.build import build_tables
from r2v.evaluation.tables.columns import COLUMNS, GLOSSARY
from r2v.evaluation.tables.files import BUNDLE, render, write_results


@pytest.fixture(scope="module")
def tables(episodes, setup):
    return build_tables(iter(episodes), setup)


@pytest.fixture(scope="module")
def texts(tables):
    return render(tables.bundle())


def row_of(rows, **wanted):
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            "slm_only",
            {
                "success_rate": 1 / 3,
                "worst_seed_sr": 1 / 3,
                "cvar_failure": 2 / 3,
                "bottom_10_sr": 0.0,
                "avg_cost": 0.01,
                "llm_call_rate": 0.0,
                "cost_normalised": 10.0,
                "cost_fraction": 0.0,
                "safety_failure_rate": None,
                "n_injected": 0,
                "robustness_gap": 2 / 3,
                "brier": None,
            },
        ),
        (
            "llm_only",
            {
                "success_rate": 5.5 / 6,
                "worst_seed_sr": 5 / 6,
                "cvar_failure": 1 / 6,
                "bottom_10_sr": 0.5,
                "avg_cost": 0.5,
                "llm_call_rate": 1.0,
                "cost_normalised": 500.0,
                "cost_fraction": 1.0,
                "tokens_llm": 100.0,
                "robustness_gap": 0.5 / 6,
            },
        ),
        (
            "r2v",
            {
                "success_rate": 4 / 6,
                "worst_seed_sr": 4 / 6,
                "cvar_failure": 2 / 6,
                "bottom_10_sr": 0.0,
                "avg_cost": 1.1 / 6,
                "avg_latency": 2.0,
                "p50_latency": 2.0,
                "p95_latency": 3.0,
                "llm_call_rate": 30 / 140,
                "llm_call_rate_per_episode": 0.25,
                "tokens_llm": 25.0,
                "tokens_slm": 100.0,
                "cost_normalised": (5 * 157 + 20) / 6,
                "cost_normalised_share": (5 * 157 + 20) / (5 * 500 + 1000),
                "cost_fraction": (1.1 / 6 - 0.01) / 0.49,
                "safety_failure_rate": 1 / 3,
                "n_injected": 3,
                "ece": 0.28,
                "brier": 0.208,
                "brier_base_rate": 0.24,
                "router_auroc": 4 / 6,
                "apgr": 0.6088435,
                "n_tasks": 6,
                "n_seeds": 2,
                "n_env_faults": 0,
            },
        ),
    ],
)
def test_main_table_by_hand(tables, method, expected):
    row = row_of(tables.main_table, method=method, condition="noisy")
    by_hand = {
        key: value if value is None else pytest.approx(value, rel=1e-5, abs=1e-9) for key, value in expected.items()
    }
    assert {key: row[key] for key in expected} == by_hand


def test_ten_steps_three_by_the_llm_at_fifty_to_one_cost_157(make_episode, setup):
    one = dataclasses.replace(setup, methods=("r2v",), seeds=(1,), tasks={"noisy": ["t1"]}, frontier={})
    (row,) = build_tables([make_episode(escalated=3)], one).main_table
    assert (row["cost_normalised"], row["cost_normalised_share"]) == (157.0, 0.314)


def test_a_cell_without_failure_gets_wilson_over_tasks(tables):
    row = row_of(tables.main_table, method="slm_only", condition="clean")
    assert row["success_rate"] == 1.0 and row["success_rate_ci_method"] == "wilson"
    assert row["success_rate_ci"] == pytest.approx(wilson(6, 6), abs=1e-6)


def test_an_aggregate_is_all_and_seeds_have_their_own_file(tables):
    assert {row["seed"] for row in tables.main_table} == {"all"}
    assert {row["seed"] for row in tables.per_seed} == {1, 2}
    llm = row_of(tables.per_seed, method="llm_only", condition="noisy", seed=1)
    assert llm["success_rate"] == pytest.approx(5 / 6, rel=1e-5)
    assert llm["success_rate_ci"] == pytest.approx(wilson(5, 6), abs=1e-5)


def test_comparisons_by_hand(tables):
    slm = row_of(tables.comparisons, method_b="slm_only", condition="noisy")
    expected = {
        "value_a": 4 / 6,
        "value_b": 2 / 6,
        "difference": 2 / 6,
        "p_value": 0.125,
        "standard_error": 0.105409,
        "effect_size": 1.290994,
        "n_tasks": 6,
    }
    assert {key: slm[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    llm = row_of(tables.comparisons, method_b="llm_only", condition="noisy")
    assert (llm["difference"], llm["p_value"]) == (-0.25, 0.25)
    # Holm over four comparisons: noisy .125 and .25, clean 1 and 1
    assert (slm["p_holm"], llm["p_holm"]) == (0.5, 0.75)
    assert (slm["verdict"], slm["significant"]) == ("inconclusive", False)


def test_categories_are_those_that_hit(tables):
    hit = row_of(tables.per_category, method="r2v", condition="noisy", category="prompt_injection")
    calm = row_of(tables.per_category, method="r2v", condition="noisy", category="none")
    assert (hit["n_episodes"], hit["n_tasks"], hit["success_rate"]) == (3, 2, 1.0)
    assert (calm["n_episodes"], calm["n_tasks"]) == (9, 5)
    assert calm["success_rate"] == pytest.approx((1 + 1 + 0.5 + 0.5 + 0) / 5)


def test_frontier_has_both_ends_and_every_point(tables):
    assert [(row["method"], row["operating_point"], row["cost_fraction"]) for row in tables.frontier] == [
        ("slm_only", "main", 0.0),
        ("llm_only", "main", 1.0),
        ("r2v", "main", next(row["cost_fraction"] for row in tables.main_table if row["method"] == "r2v")),
        ("r2v", "b0.20", 0.353741),
    ]


def test_csv_headers_are_the_seeds_fifteen_and_then_ours(texts):
    header = texts["main_table.csv"].splitlines()[0].split(",")
    assert header[:15] == [
        "method",
        "benchmark",
        "condition",
        "seed",
        "success_rate",
        "success_rate_ci",
        "worst_seed_sr",
        "cvar_failure",
        "bottom_10_sr",
        "avg_cost",
        "avg_latency",
        "llm_call_rate",
        "safety_failure_rate",
        "ece",
        "brier",
    ]
    assert header[15:20] == ["n_tasks", "n_seeds", "ci_method", "tokens_llm", "p95_latency"]
    assert (
        texts["comparisons.csv"]
        .splitlines()[0]
        .startswith(
            "method_a,method_b,benchmark,condition,metric,value_a,value_b,difference,ci_lower,ci_upper,p_value,"
            "significant,effect_size,test_name,n_tasks,p_holm,verdict"
        )
    )


def test_every_column_is_a_key_of_its_rows(tables):
    for name in ("main_table", "per_seed", "per_category", "comparisons", "frontier"):
        for row in getattr(tables, name):
            assert set(COLUMNS[f"{name}.csv"]) - {"ci_method"} <= row.keys()


def test_claims_point_at_figures_that_exist(texts):
    bundle = json.loads(texts[BUNDLE])
    rows = {row["id"] for part in ("main_table", "comparisons") for row in bundle[part]}
    ids = rows | {f"{row['id']}/{name}" for row in bundle["main_table"] for name in GLOSSARY if row[name] is not None}
    assert bundle["claims"]
    for claim in bundle["claims"]:
        assert set(claim["evidence_ids"]) <= ids
        assert claim_text(claim)
    assert len({claim["id"] for claim in bundle["claims"]}) == len(bundle["claims"])
    assert all(set(caveat["evidence_ids"]) <= rows for caveat in bundle["caveats"])


def test_order_of_episodes_and_a_second_writing_change_no_byte(episodes, setup, texts, tmp_path):
    assert render(build_tables(episodes[::-1], setup).bundle()) == texts
    for _ in range(2):
        write_results(tmp_path, render(build_tables(episodes, setup).bundle()))
        assert {name: (tmp_path / name).read_text() for name in texts} == texts
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [entry["path"] for entry in manifest["files"]] == list(texts)


def test_one_flipped_success_shows(episodes, setup, texts):
    flipped = [dataclasses.replace(episodes[0], success=not episodes[0].success), *episodes[1:]]
    assert render(build_tables(flipped, setup).bundle())["main_table.csv"] != texts["main_table.csv"]


def test_every_figure_of_the_main_table_is_defined() -> None:
    labels = {"method", "benchmark", "condition", "seed", "ci_method", "many_faults", "leading"}
    figures = {name for name in COLUMNS["main_table.csv"] if not name.startswith("n_") and not name.endswith("_ci")}
    assert figures - labels == GLOSSARY.keys()
