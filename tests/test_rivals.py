"""Fitted Q iteration finds the Q of a small world whose answer is known."""

from __future__ import annotations

import pytest

from benchmarks.rivals import CALLS_SO_FAR, PRICE_OF_ASKING, fitted_q
from r2v.config import RouterConfig
from r2v.router.labels import FeatureRow


def row(episode: int, step: int, hard: bool, asked: bool, q_slm: float, q_llm: float) -> FeatureRow:
    return FeatureRow(
        state_id=f"{episode}#{step}",
        episode_id=f"{episode}",
        task_id=f"t{episode}",
        split="train",
        step_idx=step,
        actor="llm_fallback" if asked else "slm",
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

    shrinkage = 0.9**60  # what boosting of 60 trees at the rate 0.1 leaves of a constant
    assert of(True, 1) == pytest.approx((0.0, 1 - PRICE_OF_ASKING), abs=2 * shrinkage)
    assert of(False, 1) == pytest.approx((1.0, 1 - PRICE_OF_ASKING), abs=2 * shrinkage)
    best = 0.5 * 1 + 0.5 * (1 - PRICE_OF_ASKING)
    assert of(False, 0)[0] == pytest.approx(best, abs=3 * shrinkage)
