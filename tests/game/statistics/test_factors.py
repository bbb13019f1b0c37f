"""Effects of factors on a design counted by hand: main effects, interactions, blocks, and excluded factors."""

from __future__ import annotations

import pytest

from r2v.game.play.records import InteractionOutcome
from r2v.game.statistics.factors import factor_effects

from ..sample_game import side

LEVELS = {
    "1": {"model": "a", "persona": "none"},
    "2": {"model": "a", "persona": "shy"},
    "3": {"model": "b", "persona": "none"},
    "4": {"model": "b", "persona": "shy"},
}


def design(revealed: dict[str, list[bool]]) -> list[InteractionOutcome]:
    """Return a design in which every agent meets the opponent once in each replicate."""
    return [
        InteractionOutcome(
            id=f"c{replicate}-{agent}",
            cluster=f"{replicate}/{agent}",
            session=f"{replicate}a",
            replicate=str(replicate),
            round=0,
            players=(side(agent, agent=agent, at=1 if gave else None), side("o", agent="5", at=1)),
        )
        for agent, results in revealed.items()
        for replicate, gave in enumerate(results)
    ]


def test_effects_and_interaction_by_hand() -> None:
    """Rates: a none 1/6, a shy 1/6, b none 5/6, b shy 2/6."""
    one, two, five = [True] + [False] * 5, [True, True] + [False] * 4, [True] * 5 + [False]
    model, persona = factor_effects(design({"1": one, "2": one, "3": five, "4": two}), LEVELS)
    assert (model["name"], [row["level"] for row in model["levels"]], model["levels"][1]["n"]) == (
        "model",
        ["a", "b"],
        12,
    )
    assert [row["revealed"]["count"] for row in model["levels"]] == [2, 7]
    (effect,) = model["contrasts"]
    assert (effect["level"], effect["baseline"]) == ("b", "a")
    assert effect["revealed"]["mean"] == pytest.approx((5 / 6 + 2 / 6) / 2 - 1 / 6)
    assert effect["revealed"]["pairs"] == 6, "the replicates are the blocks"
    assert persona["contrasts"][0]["revealed"]["mean"] == pytest.approx((1 / 6 + 2 / 6) / 2 - (1 / 6 + 5 / 6) / 2)
    (interaction,) = model["interactions"]
    assert (interaction["factor"], interaction["level"], interaction["other"]) == ("persona", "b", "shy")
    assert interaction["revealed"]["mean"] == pytest.approx((2 / 6 - 1 / 6) - (5 / 6 - 1 / 6))
    assert persona["interactions"] == []
    assert all(
        row["contrasts"][0]["revealed"]["p_holm"] >= row["contrasts"][0]["revealed"]["p"] for row in (model, persona)
    )


def test_few_replicates_have_no_interval_and_a_missing_arm_leaves_its_replicate_out() -> None:
    game = design({"1": [True, False, True], "2": [False] * 3, "3": [True] * 3, "4": [True, True]})
    model, _ = factor_effects(game, LEVELS)
    assert model["contrasts"][0]["revealed"]["interval"] is None
    assert model["contrasts"][0]["revealed"]["mean"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert model["interactions"][0]["revealed"]["pairs"] == 2


def test_nothing_varied_is_no_factor() -> None:
    game = design({"1": [True] * 3})
    assert factor_effects(game, {"1": LEVELS["1"]}) == [] and factor_effects(game, {}) == []
