"""The router's budget: a share of LLM steps, or dollars beyond those of the small policy alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from r2v.config import load
from r2v.errors import UsageError
from r2v.evaluation.calibration import CalibrationPlay, RouterStates, place_router

SCORES = [number / 100 for number in range(1, 100)]


def played(asked: Sequence[tuple[str, float]]) -> list[list[CalibrationPlay]]:
    """Return the plays of a policy that defers in proportion, at $2 an episode alone and $10 with the LLM at every
    step."""
    rates = [1 - tau for _, tau in asked]
    calls = [round(100 * rate) for rate in rates]
    return [
        [CalibrationPlay(task_id="t", steps=100, llm_calls=count, cost=2 + 8 * rate, success=True)]
        for rate, count in zip(rates, calls, strict=True)
    ]


def test_a_share_of_steps_and_a_percentage_of_dollars_are_both_met() -> None:
    states = RouterStates.of(SCORES, [])
    share = place_router(load(None, ["router.budget=0.3"]).router, played, states)
    assert share.own.outcome.llm_call_rate == pytest.approx(0.3, abs=0.011) and share.choice is None
    over = place_router(load(None, ["router.budget_over_small=0.5"]).router, played, states)
    assert over.acting.outcome.cost == pytest.approx(3.0, rel=0.03), "half as much again as $2"


def test_an_imputed_router_has_no_dollars() -> None:
    with pytest.raises(UsageError, match="router.budget_over_small needs executed labels"):
        load(None, ["router.label=imputed", "router.budget_over_small=0.5"])
