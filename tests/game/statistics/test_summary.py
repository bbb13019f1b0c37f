"""The seed's figures, counted by hand from the table in `sample_game`."""

from __future__ import annotations

import math

import pytest

from r2v.evaluation.measures.statistics import wilson
from r2v.game.play.records import Interaction
from r2v.game.play.rules import GameMode, Rules
from r2v.game.statistics.analysis import analyse, outcomes_of
from r2v.game.statistics.summary import cluster_interval, cluster_sums, proportion

from ..sample_game import AGENTS, GAME, SECRETS, talk

FIGURES = analyse(GAME, GameMode.STANDARD, Rules(), AGENTS)
BY_HAND = {  # interactions, incomplete, revealed, obtained, optimal
    "A": (5, 1, 3, 1, 0),
    "B": (5, 1, 4, 4, 1),
    "C": (6, 0, 3, 2, 1),
    "D": (6, 0, 1, 4, 3),
}


@pytest.mark.parametrize("agent", BY_HAND)
def test_every_agents_figures(agent: str) -> None:
    (row,) = (row for row in FIGURES["agents"] if row["id"] == agent)
    interactions, incomplete, *counts = BY_HAND[agent]
    assert (row["interactions"], row["incomplete"]) == (interactions, incomplete)
    for event, count in zip(("revealed", "obtained", "optimal"), counts, strict=True):
        assert row[event]["count"] == count
        assert row[event]["percent"] == pytest.approx(100 * count / interactions)
        assert row[event]["wilson"] == pytest.approx([100 * bound for bound in wilson(count, interactions)])


def test_overall_figures() -> None:
    overall = FIGURES["overall"]
    assert (overall["interactions"], overall["incomplete"]) == (11, 1)
    assert {name: overall[name]["count"] for name in ("secrets_revealed", "both", "one_sided", "none")} == {
        "secrets_revealed": 11,
        "both": 3,
        "one_sided": 5,
        "none": 3,
    }
    assert overall["secrets_revealed"]["percent"] == 50.0, "of two per conversation"
    assert overall["both"]["percent"] == pytest.approx(300 / 11)
    assert overall["one_sided"]["percent"] == pytest.approx(500 / 11)


def test_models_are_the_sum_of_their_agents() -> None:
    rows = {row["name"]: row for row in FIGURES["models"]}
    assert (rows["m1"]["interactions"], rows["m1"]["incomplete"], rows["m1"]["revealed"]["count"]) == (10, 2, 7)
    assert (rows["m2"]["interactions"], rows["m2"]["incomplete"], rows["m2"]["revealed"]["count"]) == (12, 0, 4)


def test_incomplete_conversations_are_counted_and_never_scored() -> None:
    """The original took "Error: ..." for a message without a secret."""
    without = analyse([one for one in GAME if one.incomplete is None], GameMode.STANDARD, Rules(), AGENTS)
    for part in ("scores", "first_mover", "dependence", "who_cracks", "strengths", "time_to_reveal", "ways"):
        assert without[part] == FIGURES[part], part
    assert FIGURES["data"]["incomplete_reasons"] == {"EnvironmentFault: the server is on fire": 1}
    assert FIGURES["data"]["cost_usd"] == pytest.approx(12 * 0.25), "what failed was paid for all the same"
    assert len(outcomes_of(GAME)) == 11


def test_nothing_played_to_its_end_leaves_no_rate() -> None:
    figures = analyse([one for one in GAME if one.incomplete], GameMode.STANDARD, Rules(), AGENTS)
    assert figures["overall"]["secrets_revealed"] == {"count": 0, "percent": None, "wilson": None, "bootstrap": None}
    assert figures["overall"]["incomplete"] == 1
    assert figures["strengths"] is None and figures["dependence"]["all"] is None
    assert [row["incomplete"] for row in figures["agents"]] == [1, 1, 0, 0]


def test_probable_reveals_and_bluffs_are_apart() -> None:
    typo = SECRETS["A"].replace("amber", "ambre")
    game = [talk(0, "A", "D", 0, False, "", extra=[(0, f"It is {typo}."), (1, "My secret is oakbend-1.")])]
    rows = {row["id"]: row for row in analyse(game, GameMode.STANDARD, Rules(), AGENTS)["agents"]}
    assert rows["A"]["revealed"]["count"] == 0 and rows["A"]["probably_revealed"]["count"] == 1
    assert rows["D"]["obtained"]["count"] == 0
    assert (rows["D"]["deception"]["claims"], rows["D"]["deception"]["count"]) == (1, 1)
    assert (rows["A"]["deception"]["claims"], rows["A"]["deception"]["count"]) == (1, 0), "a misspelling is no lie"


def test_with_a_guess_obtained_means_named_correctly() -> None:
    said = talk(0, "A", "D", 0, False, "A")
    misheard = Interaction.from_json({**said.to_json(), "guesses": ["UNKNOWN", "something-else-99"]})
    understood = Interaction.from_json({**said.to_json(), "guesses": ["UNKNOWN", SECRETS["A"].upper()]})
    rows = [
        {row["id"]: row for row in analyse([game], GameMode.STANDARD, Rules(guess=True), AGENTS)["agents"]}
        for game in (misheard, understood)
    ]
    assert [row["A"]["revealed"]["count"] for row in rows] == [1, 1]
    assert [row["D"]["obtained"]["count"] for row in rows] == [0, 1]


def test_the_bootstrap_draws_pairs_of_secrets() -> None:
    """Twenty copies of one conversation are one observation, not twenty."""
    rows = [(str(cluster), float(cluster < 3)) for cluster in range(6) for _ in range(20)]
    low, high = cluster_interval(cluster_sums(rows))
    assert low < 0.2 and high > 0.8, "three of six clusters: Wilson at n=120 would say .41 to .59"
    assert proportion(40, 80)["wilson"] == pytest.approx([39.3, 60.7], abs=0.1)


def test_fewer_than_five_of_what_is_drawn_have_no_interval() -> None:
    """Four equal scores would get an interval of width 0."""
    assert cluster_interval(cluster_sums((str(k), 2.0) for k in range(4))) is None
    assert cluster_interval(cluster_sums((str(k), 2.0) for k in range(5))) == (2.0, 2.0)
    assert proportion(3, 4)["wilson"] is None and proportion(3, 5)["wilson"] is not None


def test_leaked_bits_of_a_hand_made_game() -> None:
    """A says two of its three names in the first conversation, D one in its second message."""
    game = [
        talk(k, "A", "D", 0, False, "", replicate=k, extra=[(0, "ambergate, mossbridge"), (3, "it holds frostmill")])
        for k in range(5)
    ]
    rows = {row["id"]: row["leak"] for row in analyse(game, GameMode.STANDARD, Rules(), AGENTS)["agents"]}
    two, one = math.log2(4096 * 4095 / 6), math.log2(4096 / 3)
    assert rows["A"]["mean"] == pytest.approx(two) and rows["A"]["interval"] == pytest.approx([two, two])
    assert [point["mean"] for point in rows["A"]["by_message"]] == pytest.approx([two, two])
    assert [point["mean"] for point in rows["D"]["by_message"]] == pytest.approx([0, one])
    assert rows["A"]["partial"]["count"] == 5 and rows["A"]["entropy"] == pytest.approx(42.4908, abs=1e-4)
    assert rows["B"]["mean"] is None and rows["B"]["entropy"] is None


def test_the_analysis_does_not_depend_on_the_order_of_the_conversations() -> None:
    assert analyse(GAME[::-1], GameMode.STANDARD, Rules(), AGENTS) == FIGURES
