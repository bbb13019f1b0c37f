"""Round robins: every agent meets every other, both ways, and a schedule cut anywhere stays balanced."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from r2v.game.play.pairing import round_robin, schedule


@pytest.mark.parametrize("agents", range(2, 10))
def test_everybody_meets_everybody_once(agents: int) -> None:
    rounds = round_robin(agents)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == [list(pair) for pair in combinations(range(agents), 2)]
    for pairs in rounds:
        busy = [agent for pair in pairs for agent in pair]
        assert len(busy) == len(set(busy)) == agents - agents % 2


@pytest.mark.parametrize("agents", [2, 3, 4, 5])
def test_every_pair_meets_both_ways_in_every_replicate(agents: int) -> None:
    full = agents * (agents - 1)
    meetings = schedule(agents, 3 * full)
    assert Counter((one.replicate, one.first, one.second) for one in meetings) == Counter(
        (replicate, a, b) for replicate in range(3) for a in range(agents) for b in range(agents) if a != b
    )
    for replicate in range(3):
        for flipped in (False, True):
            session = [one for one in meetings if (one.replicate, one.flipped) == (replicate, flipped)]
            assert len({frozenset((one.first, one.second)) for one in session}) == len(session) == full // 2


@pytest.mark.parametrize("number", range(1, 30))
def test_a_cut_schedule_leaves_at_most_one_pair_unbalanced(number: int) -> None:
    meetings = schedule(4, number)
    assert len(meetings) == number
    both = Counter((one.replicate, frozenset((one.first, one.second))) for one in meetings)
    assert sum(count == 1 for count in both.values()) == number % 2


def test_the_original_met_the_same_partner_every_round() -> None:
    partners = {one.second if one.first == 0 else one.first for one in schedule(4, 12) if 0 in (one.first, one.second)}
    assert partners == {1, 2, 3}
