from __future__ import annotations

import pytest

from r2v.evaluation.claims import caveats, claims, headline
from r2v.evaluation.figure_text import claim_text
from r2v.evaluation.measures.comparisons import AT_COST, verdict
from r2v.evaluation.setup import RouterScores

FIGURES = {"n_seeds": 5, "n_env_faults": 0, "success_rate": 0.5, "avg_latency": None}


def main_row(method, cost=None, brier=None, **figures):
    return {
        "id": f"main/noisy/{method}",
        "method": method,
        "condition": "noisy",
        "cost_fraction": cost,
        "brier": brier,
        "brier_base_rate": 0.2,
        "llm_call_rate": 0.2,
        **FIGURES,
        **figures,
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
    assert claim["opposite"] <= (claim["verdict"] == "supported")
    return claim["verdict"], claim_text(claim)


@pytest.mark.parametrize(
    ("low", "high", "significant", "verdict", "words"),
    [
        (0.01, 0.2, True, "supported", "more"),
        (-0.2, -0.01, True, "supported", "less"),
        (-0.01, 0.2, False, "inconclusive", "more"),
        (0.01, 0.2, False, "inconclusive", "more"),
        (-0.2, -0.01, False, "inconclusive", "more"),
    ],
)
@pytest.mark.parametrize(
    ("other", "metric", "text"),
    [
        ("slm_only", "success_rate", "r2v succeeds {} often than slm_only on noisy tasks"),
        ("task_router", AT_COST, "r2v succeeds {} often than task_router for the same dollars on noisy tasks"),
        ("disagreement_router", "apgr", "r2v recovers {} of the gap to the LLM for its cost than disagreement_router"),
    ],
)
def test_a_claim_says_more_or_less_as_the_interval_and_holm_show_it(
    other, metric, text, low, high, significant, verdict, words
):
    claim = the_claim([compared(other, low, high, significant=significant, metric=metric)])
    assert claim[0] == verdict and claim[1].startswith(text.format(words))


@pytest.mark.parametrize(("theirs", "apart"), [(0.26, False), (0.14, True), (0.30, True), (None, False)])
def test_routers_that_did_not_cost_the_same_are_named(theirs, apart):
    texts = [caveat["text"] for caveat in caveats([main_row("r2v", 0.25), main_row("entropy_router", theirs)], [])]
    assert any("did not cost the same" in text for text in texts) == apart


@pytest.mark.parametrize(
    ("low", "high", "verdict", "words"),
    [
        (-0.009, 0.03, "supported", "as often as llm_only, give or take one point"),
        (-0.05, 0.03, "inconclusive", "as often as llm_only, give or take one point"),
        (-0.09, -0.02, "supported", "less often than llm_only, by more than one point"),
    ],
)
def test_as_good_as_the_llm_means_within_one_point(low, high, verdict, words):
    claim = the_claim([compared("llm_only", low, high, significant=False)])
    assert claim[0] == verdict and words in claim[1]


@pytest.mark.parametrize("metric", ["success_rate", "apgr"])
def test_outside_the_families_nothing_is_claimed(metric):
    assert claims([], [compared("logprob_router", 0.01, 0.2, family=False, metric=metric)]) == []


def test_a_score_worse_than_the_base_rate_is_called_not_useful():
    row = main_row("r2v", 0.2, brier=0.415)
    verdict, text = the_claim([], row)
    assert verdict == "supported" and "no better than a constant" in text
    assert any("not useful" in caveat["text"] for caveat in caveats([row], []))
    assert "better than a constant" in the_claim([], main_row("r2v", 0.2, brier=0.1))[1]


def test_a_missing_apgr_is_explained():
    rows = [main_row("slm_only", 0.0), main_row("entropy_router", 0.2), main_row("r2v", 0.0, llm_call_rate=0.0)]
    [never] = [caveat["evidence_ids"] for caveat in caveats(rows, []) if "in no step" in caveat["text"]]
    assert never == ["main/noisy/r2v"]
    rows[0]["success_rate"] = 0.0
    [nothing] = [caveat["evidence_ids"] for caveat in caveats(rows, []) if "solved nothing" in caveat["text"]]
    assert nothing == ["main/noisy/entropy_router", "main/noisy/r2v"]


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


PLAYED = {"slm_only": (0.4, 0.0002), "llm_only": (0.9, 0.01), "r2v": (0.8, 0.003)}


def headline_row(condition, method, success, usd):
    return {
        "condition": condition,
        "method": method,
        "success_rate": success,
        "avg_cost_cached": usd,
        "n_tasks": 60,
    }


def headline_comparison(condition, other, metric, verdict):
    return {
        "condition": condition,
        "method_b": other,
        "metric": metric,
        "verdict": verdict,
        "value_a": 0.41,
        "value_b": 0.4,
        "difference": 0.01,
        "ci_lower": -0.05,
        "ci_upper": 0.07,
    }


def bundle(over_slm="higher", apgr=(), **conditions):
    """Return a bundle: conditions -> (success, USD) by method, each besides `PLAYED`."""
    conditions = conditions or {"noisy": {}}
    return {
        "setup": {"conditions": list(conditions)},
        "main_table": [
            headline_row(name, method, *figures)
            for name, changed in conditions.items()
            for method, figures in {**PLAYED, **changed}.items()
            if figures
        ],
        "comparisons": [
            *(headline_comparison(name, "slm_only", "success_rate", over_slm) for name in conditions),
            *(headline_comparison(name, other, "apgr", verdict) for name in conditions for other, verdict in apgr),
        ],
    }


def test_a_result_is_success_share_of_the_gap_and_share_of_the_bill():
    [line] = headline(bundle())
    assert line == "noisy: r2v solves .80, .80 of the way from the small policy to the LLM, for .30 of the LLM's bill"
    verdicts = [("entropy_router", "higher"), ("task_router", "inconclusive"), ("disagreement_router", "lower")]
    [line] = headline(bundle(apgr=verdicts))
    assert line.endswith("; over all budgets ahead of 1 of 3 routers, behind disagreement_router")
    [alone] = headline(bundle(noisy={"slm_only": None, "llm_only": None}))
    assert alone == "noisy: r2v solves .80 for 3.0 mUSD an episode"


def test_a_small_policy_that_solves_nothing_comes_before_everything():
    [line] = headline(bundle(over_slm="inconclusive", noisy={"slm_only": (0.0, 0.0002)}))
    assert line.startswith("noisy: the small policy solved none of 60 tasks: train it longer")
    assert "train_match in bc_report.json" in line


@pytest.mark.parametrize(
    ("over_slm", "changed", "words"),
    [
        ("inconclusive", {}, "never asking is as good: r2v's .41 of the tasks is not shown to be more than"),
        ("lower", {}, "small policy's .40 (+.01 [-.05, +.07])"),
        (
            "higher",
            {"slm_only": (0.9, 0.0002)},
            "never asking is as good: the small policy solves .90 of the tasks, the",
        ),
        (
            "higher",
            {"r2v": (0.9, 0.0099)},
            "always asking is as good: r2v costs 9.9 mUSD an episode, the LLM alone 10.0",
        ),
    ],
)
def test_a_router_that_one_could_do_without_is_named(over_slm, changed, words):
    [line] = headline(bundle(over_slm, noisy=changed))
    assert words in line


def test_conditions_with_one_text_share_a_line_and_the_gravest_comes_first():
    unsolved = {"slm_only": (0.0, 0.0002)}
    lines = headline(bundle(clean={}, noisy=unsolved, shift=unsolved))
    assert [line.partition(":")[0] for line in lines] == ["noisy, shift", "clean"]


def test_without_r2v_there_is_no_headline():
    assert headline({**bundle(noisy={"r2v": None}), "comparisons": []}) == []
