"""The first line of an evaluation, case by case."""

from __future__ import annotations

import pytest

from r2v.evaluation.headline import headline

PLAYED = {"slm_only": (0.4, 0.0002), "llm_only": (0.9, 0.01), "r2v": (0.8, 0.003)}


def main_row(condition, method, success, usd):
    return {
        "condition": condition,
        "method": method,
        "success_rate": success,
        "avg_cost_cached": usd,
        "n_tasks": 60,
    }


def compared(condition, other, metric, verdict):
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
    """Conditions -> (success, USD) by method, each besides `PLAYED`."""
    conditions = conditions or {"noisy": {}}
    return {
        "setup": {"conditions": list(conditions)},
        "main_table": [
            main_row(name, method, *figures)
            for name, changed in conditions.items()
            for method, figures in {**PLAYED, **changed}.items()
            if figures
        ],
        "comparisons": [
            *(compared(name, "slm_only", "success_rate", over_slm) for name in conditions),
            *(compared(name, other, "apgr", verdict) for name in conditions for other, verdict in apgr),
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
