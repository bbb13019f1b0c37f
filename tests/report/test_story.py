"""The first screen has one sentence, one number and one reason, for any results."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.report.story import story

NO_BREAK = "\u00a0"


def bundle(gain: str = "higher", **success: float) -> dict[str, Any]:
    """Return a bundle of one condition with these methods."""
    prices = {"slm_only": 0.001, "llm_only": 0.01}
    rows = [
        {
            "condition": "noisy",
            "method": name,
            "n_tasks": 60,
            "success_rate": value,
            "success_rate_ci": [value - 0.05, value + 0.05],
            "avg_cost_cached": prices.get(name, 0.003),
            "llm_call_rate": 0.2,
            "router_auroc": {"r2v": 0.8, "entropy_router": 0.7}.get(name),
        }
        for name, value in success.items()
    ]
    compared = {
        "condition": "noisy", "method_b": "slm_only", "metric": "success_rate", "verdict": gain, "ci_lower": -0.01,
        "ci_upper": 0.05, "difference": 0.02, "value_a": 0.5, "value_b": 0.48,
    }  # fmt: skip
    comparisons = [compared] if {"r2v", "slm_only"} <= set(success) else []
    return {"main_table": rows, "comparisons": comparisons, "setup": {"conditions": ["noisy"]}}


@pytest.mark.parametrize(
    ("success", "number", "about", "reason"),
    [
        (
            {"slm_only": 0.4, "llm_only": 0.9, "entropy_router": 0.6, "r2v": 0.8},
            "80 %",
            "of the LLM's lead over the small policy kept by r2v, for 30 % of its bill",
            "with probability .80 (a coin: .50; of entropy_router's score, .70)",
        ),
        (
            {"slm_only": 0, "llm_only": 0.9, "r2v": 0.5},
            "0 of 60",
            "tasks solved by the small policy alone",
            "solves none",
        ),
        (
            {"llm_only": 0.9},
            "90 %",
            "of the tasks solved by llm_only, 95 % interval 85 % to 95 %",
            "r2v was not played",
        ),
        ({"r2v": 0.8}, "80 %", "of the tasks solved by r2v, 95 % interval 75 % to 85 %", "asks the LLM in 20 % of"),
        ({"slm_only": 0.9, "llm_only": 0.8, "r2v": 0.85}, "85 %", "of the tasks solved by r2v", "asks the LLM in 20 %"),
    ],
)
def test_each_case_has_its_number_and_its_reason(
    success: dict[str, float], number: str, about: str, reason: str
) -> None:
    told = story(bundle(**success))
    assert told.number.replace(NO_BREAK, " ") == number and told.about.replace(NO_BREAK, " ").startswith(about)
    assert reason in told.reason.replace(NO_BREAK, " ") and told.sentence.startswith("noisy: ")
    assert told.condition == "noisy" and told.others == ()


def test_a_gain_that_is_not_shown_is_given_with_its_interval() -> None:
    told = story(bundle("inconclusive", slm_only=0.48, llm_only=0.9, r2v=0.5))
    assert (told.number, told.about[-33:]) == ("+.02", "alone, 95 % interval -.01 to +.05")
    assert "never asking is as good" in told.sentence
