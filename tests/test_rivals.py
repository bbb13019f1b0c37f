"""Fitted Q iteration finds the Q of a small environment; r2v plays the score that the product would."""

from __future__ import annotations

import pytest

from benchmarks.rivals import CALLS_SO_FAR, PRICE_OF_ASKING, fitted_q, preferred
from r2v.config import RouterConfig
from r2v.router.labels import FeatureRow


def row(episode: int, step: int, hard: bool, decided: bool, q_slm: float, q_llm: float) -> FeatureRow:
    return FeatureRow(
        state_id=f"{episode}#{step}",
        episode_id=f"{episode}",
        task_id=f"t{episode}",
        split="train",
        step_idx=step,
        actor="llm_fallback" if decided else "slm",
        features={"page.hard": float(hard), "progress.step": float(step), CALLS_SO_FAR: 0.0},
        q_slm=q_slm,
        q_llm=q_llm,
        slm_episode_success=None,
        round=1,
    )


@pytest.mark.parametrize("asking_at_the_door", [False, True])
def test_the_action_that_nobody_took_is_worth_what_its_execution_came_to(asking_at_the_door: bool) -> None:
    """Two steps: at a hard one the small policy fails and the LLM succeeds, at an easy one both do."""
    rows = []
    for episode in range(80):
        hard = episode % 2 == 0
        won = float(asking_at_the_door or not hard)
        rows += [
            row(episode, 0, False, False, won, won),
            row(episode, 1, hard, asking_at_the_door, float(not hard), 1.0),
        ]
    q = fitted_q(rows, RouterConfig(features=["page", "progress"]), 0)

    def of(hard: bool, step: int) -> tuple[float, float]:
        features = {"page.hard": float(hard), "progress.step": float(step), CALLS_SO_FAR: 0.0}
        x = [features[name] for name in q.names]
        return q.keep.predict(x), q.ask.predict(x)

    shrinkage = 0.9**60  # the rest of a constant after boosting of 60 trees at the rate 0.1
    assert of(True, 1) == pytest.approx((0.0, 1 - PRICE_OF_ASKING), abs=2 * shrinkage)
    assert of(False, 1) == pytest.approx((1.0, 1 - PRICE_OF_ASKING), abs=2 * shrinkage)
    best = 0.5 * 1 + 0.5 * (1 - PRICE_OF_ASKING)
    assert of(False, 0)[0] == pytest.approx(best, abs=3 * shrinkage)


@pytest.mark.parametrize(
    ("difference", "error", "num_tasks", "name"),
    [
        (0.04, 0.02, 100, "entropy"),
        (0.04, 0.05, 100, "own"),  # within a standard error
        (0.02, 0.01, 100, "own"),  # within the margin
        (0.04, 0.02, 59, "own"),  # too few tasks to choose by
    ],
)
def test_r2v_plays_the_score_that_the_products_rule_prefers(
    difference: float, error: float, num_tasks: int, name: str
) -> None:
    outcome = {"tau": 0.5, "llm_call_rate": 0.2, "success": 0.7, "cost": 0.01}
    members = {
        "own": {**outcome, "difference": 0.0, "standard_error": 0.0},
        "disagreement": {**outcome, "difference": difference - 0.005, "standard_error": error},
        "entropy": {**outcome, "difference": difference, "standard_error": error},
    }
    assert preferred(members, num_tasks) == name
