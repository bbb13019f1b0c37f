"""Position, dependence and one-sided reveals: textbook tables, and the table in `sample_game` by hand."""

from __future__ import annotations

import pytest

from r2v.game.play.records import InteractionOutcome
from r2v.game.statistics.analysis import outcomes_of
from r2v.game.statistics.effects import first_mover_effect, one_sided_reveals, ordered_matrix, reveal_dependence

from ..sample_game import GAME, pairing, side

OUTCOMES = outcomes_of(GAME)


def test_the_first_mover_effect_by_hand() -> None:
    """As first 6 of 11, as second 5 of 11. Five pairs were played both ways; A and B were not. Their differences:
    AD +.5, BC +.5, AC -.5, DB -.5, CD +.5; of the 32 ways to flip their signs 20 leave a sum of at least .5."""
    effect = first_mover_effect(OUTCOMES)
    assert (effect["as_first"]["count"], effect["as_second"]["count"]) == (6, 5)
    assert effect["pairs_played_both_ways"] == 5
    assert effect["difference"]["mean"] == pytest.approx(0.1)
    assert effect["difference"]["p"] == pytest.approx(32 / 32)
    assert effect["difference"]["interval"][0] < 0 < effect["difference"]["interval"][1]


def test_a_pure_effect_of_position_is_all_of_it() -> None:
    told, kept = side("m", at=1, agent="x"), side("m", agent="y")
    game = [pairing(k, told, kept, f"c{k}") for k in range(6)]
    game += [pairing(10 + k, side("m", at=1, agent="y"), side("m", agent="x"), f"c{k}") for k in range(6)]
    effect = first_mover_effect(game)["difference"]
    assert effect["mean"] == 1.0
    assert effect["p"] == pytest.approx(2 / 2**6)


def test_how_often_a_pair_was_played_does_not_shift_it() -> None:
    """A player that always tells and opened three times of four makes no position effect."""
    game = [pairing(k, side("m", at=1, agent="x"), side("m", agent="y"), "c") for k in range(3)]
    game.append(pairing(9, side("m", agent="y"), side("m", at=1, agent="x"), "c"))
    assert first_mover_effect(game)["difference"]["mean"] == pytest.approx(0.0)


def test_the_matrix_has_every_ordered_pair_of_models() -> None:
    cells = {
        (row["first"], row["second"]): (
            row["interactions"],
            row["first_revealed"]["count"],
            row["second_revealed"]["count"],
        )
        for row in ordered_matrix(OUTCOMES)
    }
    assert cells == {("m1", "m1"): (1, 1, 1), ("m1", "m2"): (4, 3, 2), ("m2", "m1"): (4, 1, 2), ("m2", "m2"): (2, 1, 0)}


def _table(both: int, opener: int, follower: int, none: int) -> list[InteractionOutcome]:
    kinds = [(1, 1)] * both + [(1, None)] * opener + [(None, 1)] * follower + [(None, None)] * none
    return [pairing(k, side("a", at=a), side("b", at=b)) for k, (a, b) in enumerate(kinds)]


def test_dependence_is_fishers_tea_tasting() -> None:
    found = reveal_dependence(_table(3, 1, 1, 3))
    assert found is not None
    assert (found["both"], found["opener_only"], found["follower_only"], found["none"]) == (3, 1, 1, 3)
    assert found["p"] == pytest.approx(34 / 70)
    assert found["odds_ratio"] == pytest.approx(6.408, abs=1e-3)
    assert found["interval"] == pytest.approx([0.2117, 622], rel=0.01)


def test_dependence_of_the_game() -> None:
    found = reveal_dependence(OUTCOMES)
    assert found is not None
    assert [found[name] for name in ("both", "opener_only", "follower_only", "none")] == [3, 3, 2, 3]


def test_an_empty_margin_has_no_odds_ratio_and_an_infinite_one_no_number() -> None:
    empty, endless = reveal_dependence(_table(0, 0, 2, 3)), reveal_dependence(_table(4, 0, 0, 4))
    assert empty is not None and empty["odds_ratio"] is None and empty["p"] is None
    assert endless is not None and endless["odds_ratio"] is None and endless["p"] == pytest.approx(2 / 70)


def test_who_cracks_by_hand() -> None:
    """m1 alone gave its secret away in three conversations, m2 alone in one: 2 (1 + 4) / 16. By pairs of secrets
    the leanings are +1, -1, +1, +1: ten of sixteen sign vectors are as far from nought."""
    (row,) = one_sided_reveals(OUTCOMES)
    assert (row["a"], row["b"], row["interactions"], row["only_a"], row["only_b"]) == ("m1", "m2", 8, 3, 1)
    assert row["p"] == pytest.approx(0.625)
    assert row["p_mid"] == pytest.approx(0.375)
    assert row["p_pairs"] == pytest.approx(10 / 16)
    assert (row["p_holm"], row["p_pairs_holm"]) == (row["p"], row["p_pairs"])


def test_holm_covers_all_pairs_of_models() -> None:
    game = [pairing(k, side("a", at=1), side("b")) for k in range(8)]
    game += [pairing(20 + k, side("b", at=1), side("c")) for k in range(6)]
    game += [pairing(40 + k, side("c"), side("a", at=1)) for k in range(3)]
    rows = {(row["a"], row["b"]): row for row in one_sided_reveals(game)}
    raw = {pair: row["p"] for pair, row in rows.items()}
    assert raw == pytest.approx({("a", "b"): 2 / 2**8, ("b", "c"): 2 / 2**6, ("a", "c"): 2 / 2**3})
    assert {pair: row["p_holm"] for pair, row in rows.items()} == pytest.approx(
        {("a", "b"): 3 * 2 / 2**8, ("b", "c"): 2 * 2 / 2**6, ("a", "c"): 2 / 2**3}
    )


def test_copies_of_one_pair_of_secrets_are_one_vote() -> None:
    game = [pairing(k, side("a", at=1), side("b"), "same") for k in range(30)]
    (row,) = one_sided_reveals(game)
    assert row["p"] < 1e-8 and row["p_pairs"] == 1.0
