"""The router's budget: a share of LLM steps, or dollars over those of the small policy alone."""

from __future__ import annotations

import pytest

from r2v.config import load
from r2v.errors import UsageError
from r2v.router.thresholds import OperatingPoint
from r2v.stages.train_router import _at_budget

SCORES = [number / 100 for number in range(1, 100)]


def played(tau: float) -> OperatingPoint:
    """A policy that asks in proportion, at $2 an episode alone and $10 with the LLM at every step."""
    rate = 1 - tau
    return OperatingPoint(llm_call_rate=rate, success=rate, cost=2 + 8 * rate)


def test_a_share_of_steps_and_a_percentage_of_dollars_are_both_met() -> None:
    share = _at_budget(load(None, ["router.budget=0.3"]).router, played, SCORES)
    assert share.outcome.llm_call_rate == pytest.approx(0.3, abs=0.011)
    over = _at_budget(load(None, ["router.budget_over_small=0.5"]).router, played, SCORES)
    assert over.outcome.cost == pytest.approx(3.0, rel=0.03), "half as much again as $2"


def test_an_imputed_router_has_no_dollars() -> None:
    with pytest.raises(UsageError, match="router.budget_over_small needs executed labels"):
        load(None, ["router.label=imputed", "router.budget_over_small=0.5"])
