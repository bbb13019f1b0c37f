"""Every mode's scores, worked out by hand from the table in `sample_game`.

Session a, secrets held at its end: A holds B; B holds A, C; C holds B; D holds A, B, C. Session b has a conversation
that could not be finished and is left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from r2v.errors import UsageError
from r2v.game.play.rules import GameMode, Payoffs, Rules, check_rules, payoff, session_scores
from r2v.game.statistics.analysis import analyse, outcomes_of
from r2v.game.statistics.scores import holdings_after

from ..sample_game import AGENTS, GAME, MODELS, SECRETS, talk

BY_HAND = {
    GameMode.STANDARD: {"A": 1.0, "B": 6.0, "C": 4.0, "D": 10.0},
    GameMode.RETAINED: {"A": 4 / 3, "B": 4.0, "C": 4 / 3, "D": 16 / 3},
    GameMode.DIVERSITY: {"A": 2.0, "B": 4.0, "C": 2.0, "D": 6.0},
    GameMode.TARGETED: {"A": 1.0, "B": 7.0, "C": 1.0, "D": 8.0},
}


PLAIN = Rules()


def scores(mode: GameMode, rules: Rules = PLAIN, game: Any = GAME) -> dict[str, Any]:
    return analyse(game, mode, rules, AGENTS)["scores"]


@pytest.mark.parametrize("mode", GameMode)
def test_every_modes_totals(mode: GameMode) -> None:
    figures = scores(mode)
    assert {row["name"]: row["total"] for row in figures["agents"]} == pytest.approx(BY_HAND[mode])
    assert figures["sessions_left_out"] == (0 if mode is GameMode.STANDARD else 1)


def test_means_per_conversation_and_per_model() -> None:
    figures = scores(GameMode.STANDARD)
    assert {row["name"]: row["mean"] for row in figures["agents"]} == pytest.approx(
        {"A": 1 / 5, "B": 6 / 5, "C": 4 / 6, "D": 10 / 6}
    )
    assert {row["name"]: row["mean"] for row in figures["models"]} == pytest.approx({"m1": 7 / 10, "m2": 14 / 12})
    for row in figures["models"]:
        assert row["interval"][0] <= row["mean"] <= row["interval"][1]


def test_the_payoffs_are_configuration() -> None:
    harsh = Rules(payoffs=Payoffs(none=1.0, both=0.0, obtained_only=5.0, revealed_only=-2.0))
    assert {row["name"]: row["total"] for row in scores(GameMode.STANDARD, harsh)["agents"]} == {
        "A": -2 + 1 + 0 + 1 - 2,
        "B": 0 - 2 + 0 + 5 + 0,
        "C": 0 + 1 - 2 - 2 + 5 + 1,
        "D": 5 + 5 + 5 + 1 + 0 + 1,
    }
    assert {row["name"]: row["total"] for row in scores(GameMode.DIVERSITY, Rules(diversity_points=3.0))["agents"]} == {
        "A": 3.0,
        "B": 6.0,
        "C": 3.0,
        "D": 9.0,
    }
    assert {
        row["name"]: row["total"]
        for row in scores(GameMode.TARGETED, Rules(standard_points=2.0, target_bonus=10.0))["agents"]
    } == {"A": 2.0, "B": 14.0, "C": 2.0, "D": 16.0}


def test_the_original_payoff_table() -> None:
    table = Payoffs()
    assert [
        payoff(table, obtained, lost) for obtained, lost in ((False, False), (True, True), (True, False), (False, True))
    ] == [0, 1, 3, 0]


def test_a_secret_held_twice_counts_once_and_ones_own_never() -> None:
    held = [("A", "B"), ("A", "B"), ("A", "A")]
    assert session_scores(GameMode.DIVERSITY, Rules(), "AB", held) == {"A": 2.0, "B": 0.0}
    assert session_scores(GameMode.TARGETED, Rules(), "AB", held, target="B") == {"A": 6.0, "B": 0.0}, "1 + 5"
    assert session_scores(GameMode.TARGETED, Rules(), "AB", held, target="A") == {"A": 1.0, "B": 0.0}


RESOLD = [
    talk(number, *row, extra=[(0, f"A has {SECRETS['A']}")] if number == 5 else [])
    for number, row in enumerate(
        [
            ("A", "D", 0, False, "A"),
            ("B", "C", 0, False, "BC"),
            ("A", "C", 1, False, ""),
            ("D", "B", 1, False, "B"),
            ("A", "B", 2, False, "AB"),
            ("D", "C", 2, False, "C"),
        ]
    )
]


def test_a_secret_that_is_passed_on_counts_where_resale_is_allowed() -> None:
    """In the last conversation D, who got it from A, tells C the secret of A: 4/3 each for its three holders."""
    outcomes = outcomes_of(RESOLD, resell=True)
    assert ("C", "A") in holdings_after(outcomes, resell=True)
    assert ("C", "A") not in holdings_after(outcomes, resell=False)
    resold = scores(GameMode.RETAINED, Rules(resell=True, memory=True), RESOLD)
    assert {row["name"]: row["total"] for row in resold["agents"]} == pytest.approx(
        {"A": 4 / 3, "B": 4 / 3 + 2, "C": 4 / 3 + 4 / 3, "D": 4 / 3 + 4 / 3 + 2}
    )


def test_only_what_was_held_before_can_be_passed_on() -> None:
    """Here B names A's secret, which it never got: a lucky guess is no transfer."""
    lucky = [talk(0, "B", "C", 0, False, "", extra=[(0, SECRETS["A"])]), talk(1, "A", "B", 1, False, "A")]
    assert holdings_after(outcomes_of(lucky, resell=True), resell=True) == {("B", "A")}


def test_sessions_that_the_schedule_cut_short_are_left_out() -> None:
    figures = scores(GameMode.DIVERSITY, game=GAME[:5])
    assert figures == {"per": "session", "clusters": "replicates", "sessions_left_out": 1, "agents": [], "models": []}


@pytest.mark.parametrize(
    ("mode", "rules", "num_agents", "says"),
    [
        (GameMode.RETAINED, Rules(), 2, "at least 3 agents, got 2"),
        (GameMode.STANDARD, Rules(), 1, "at least 2 agents, got 1"),
        (GameMode.STANDARD, Rules(resell=True, memory=True), 4, "rules.resell in standard mode"),
        (GameMode.DIVERSITY, Rules(resell=True), 4, "memory=false"),
    ],
)
def test_games_that_cannot_be_played(mode: GameMode, rules: Rules, num_agents: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_rules(mode, rules, num_agents)


def test_games_that_can() -> None:
    for mode in GameMode:
        check_rules(mode, Rules(), 3)
    check_rules(GameMode.RETAINED, Rules(resell=True, memory=True), 3)
    assert set(MODELS) == set(SECRETS)
