from __future__ import annotations

import pytest

from r2v.evaluation.claims import caveats, claims
from r2v.evaluation.comparisons import verdict
from r2v.evaluation.setup import RouterScores

FIGURES = {"n_seeds": 5, "n_env_faults": 0, "success_rate": 0.5, "avg_latency": None}


def main_row(method, cost, brier=None):
    return {
        "id": f"main/noisy/{method}",
        "method": method,
        "condition": "noisy",
        "cost_fraction": cost,
        "brier": brier,
        "brier_base_rate": 0.2,
        **FIGURES,
    }


def compared(other, low, high, *, significant=True, family=True, metric="success_rate"):
    row = {
        "id": f"cmp/noisy/r2v-{other}/{metric}",
        "method_a": "r2v",
        "method_b": other,
        "condition": "noisy",
        "metric": metric,
        "ci_lower": low,
        "ci_upper": high,
        "significant": significant,
        "family": family,
    }
    return {**row, "verdict": verdict(row)}


def the_claim(rows, *main):
    (claim,) = claims(main, rows)
    return claim["verdict"], claim["text_template"]


@pytest.mark.parametrize(
    ("low", "high", "significant", "expected"),
    [
        (0.01, 0.2, True, "supported"),
        (-0.2, -0.01, True, "not_supported"),
        (-0.01, 0.2, False, "inconclusive"),
        (0.01, 0.2, False, "inconclusive"),
    ],
)
def test_a_verdict_needs_the_interval_and_holm(low, high, significant, expected):
    assert the_claim([compared("slm_only", low, high, significant=significant)])[0] == expected


@pytest.mark.parametrize("other", ["random_router", "entropy_router", "disagreement_router"])
@pytest.mark.parametrize(
    ("ours", "theirs", "higher", "lower"),
    [
        (0.27, 0.26, "supported", "not_supported"),  # the same, within the tolerance of .02
        (0.14, 0.28, "supported", "inconclusive"),  # r2v cost less: its lead counts, its lag may be what it saved
        (0.30, 0.20, "inconclusive", "not_supported"),  # and the other way round
        (None, None, "inconclusive", "inconclusive"),
    ],
)
def test_a_lead_over_a_router_counts_where_it_was_not_bought(other, ours, theirs, higher, lower):
    costs = [main_row("r2v", ours), main_row(other, theirs)]
    verdict, template = the_claim([compared(other, 0.01, 0.2)], *costs)
    assert verdict == higher and "at the same cost or less" in template
    assert the_claim([compared(other, -0.2, -0.01)], *costs)[0] == lower
    texts = [caveat["text"] for caveat in caveats(costs, [])]
    assert any("did not cost the same" in text for text in texts) == (ours in (0.14, 0.30))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.009, 0.03, "supported"), (-0.05, 0.03, "inconclusive"), (-0.09, -0.02, "not_supported")],
)
def test_as_good_as_the_llm_means_within_one_point(low, high, expected):
    assert the_claim([compared("llm_only", low, high, significant=False)])[0] == expected


@pytest.mark.parametrize("metric", ["success_rate", "apgr"])
def test_outside_the_families_nothing_is_claimed(metric):
    assert claims([], [compared("logprob_router", 0.01, 0.2, family=False, metric=metric)]) == []


def test_a_lead_in_area_needs_holm_and_no_equal_cost():
    """The area is over all costs, so that none has to be the same."""
    assert the_claim([compared("verifier_router", 0.01, 0.2, metric="apgr")])[0] == "supported"
    assert the_claim([compared("verifier_router", 0.01, 0.2, metric="apgr", significant=False)])[0] == "inconclusive"


def test_a_score_worse_than_the_base_rate_is_called_not_useful():
    row = main_row("r2v", 0.2, brier=0.415)
    assert the_claim([], row)[0] == "not_supported"
    assert any("not useful" in caveat["text"] for caveat in caveats([row], []))


def test_what_training_came_to_nothing_is_told_from_the_results():
    rows = [main_row("slm_only", 0.0), main_row("slm_bc_only", 0.0), main_row("r2v", 0.2)]
    for row, success in zip(rows, (0.25, 0.25, 0.5), strict=True):
        row.update(success_rate=success, avg_cost=0.01, condition="noisy", method=row["id"].split("/")[-1])
        row["id"] = f"main/noisy/{row['method']}"
    constant = [RouterScores(method="r2v", condition="noisy", p=(0.1, 0.1), y=(0.0, 1.0))]
    found = {caveat["text"]: caveat["evidence_ids"] for caveat in caveats(rows, [], constant)}
    [same] = [ids for text, ids in found.items() if "same score" in text]
    [handed_on] = [ids for text, ids in found.items() if "preference training changed no figure" in text]
    assert same == ["main/noisy/r2v"] and handed_on == ["main/noisy/slm_only", "main/noisy/slm_bc_only"]
    rows[1]["avg_cost"] = 0.02
    varied = [RouterScores(method="r2v", condition="noisy", p=(0.1, 0.2), y=(0.0, 1.0))]
    texts = " ".join(caveat["text"] for caveat in caveats(rows, [], varied))
    assert "same score" not in texts and "preference training" not in texts
