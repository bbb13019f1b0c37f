"""Arms: the full factorial, seating, pairings, and texts of the user's own."""

from __future__ import annotations

import pytest

from r2v.errors import UsageError
from r2v.game.play.arms import (
    Factors,
    Wording,
    agents_of,
    arms,
    check_system_prompt,
    fill,
    num_pairs,
    pairs_of,
    seats_of,
)
from r2v.game.play.pairing import schedule
from r2v.game.play.players import ModelAgent

ONE, TWO = ModelAgent(provider="openai", model="m1"), ModelAgent(provider="anthropic", model="m2")
SHY = Wording(name="shy", text="You are shy.")


def test_every_combination_once_and_only_what_varies_is_named() -> None:
    factors = Factors(
        models=(ONE, TWO), temperatures=(0.2, 1.0), max_tokens=(50,), personas=(Wording(name="none"), SHY)
    )
    found = arms(factors)
    assert factors.varied == {"model": 2, "temperature": 2, "persona": 2}
    assert len({arm.label for arm in found}) == 8 and {arm.model.max_tokens for arm in found} == {50}
    assert found[1].label == "m1, temperature 0.2, persona shy" and found[1].persona == SHY.text
    assert found[1].levels == {"model": "m1", "temperature": "0.2", "persona": "shy"}
    (only,) = arms(Factors(models=(ONE,)))
    assert (only.model, only.label, only.levels) == (ONE, "m1", {})


def test_seats_and_pairs() -> None:
    found = arms(Factors(models=(ONE,), temperatures=(0.0, 0.5, 1.0)))
    own = agents_of(seats_of(found, "self", 0))
    assert [agent.arm for agent in own[:2]] == ["m1, temperature 0"] * 2 and len(own) == 6
    assert pairs_of(3, "self") == [(0, 1), (2, 3), (4, 5)]
    against = agents_of(seats_of(found, TWO, 0))
    assert (against[3].arm, against[3].levels) == ("m2 (opponent)", {})
    assert pairs_of(3, TWO) == [(0, 3), (1, 3), (2, 3)]
    everybody = agents_of(seats_of(found, "all", 4))
    assert [agent.arm for agent in everybody][3] == everybody[0].arm and pairs_of(3, "all") is None
    assert [num_pairs(4, None), num_pairs(4, pairs_of(3, TWO))] == [6, 3]
    assert [agent.name for agent in everybody] == ["Agent1", "Agent2", "Agent3", "Agent4"], "names tell no model"


def test_models_alone_are_no_arms_and_are_called_by_their_names() -> None:
    agents = agents_of(seats_of(arms(Factors(models=(ONE, TWO))), "all", 4))
    assert [agent.service for agent in agents] == [ONE, TWO, ONE, TWO]
    assert {agent.arm for agent in agents} == {""}
    assert agents[1].levels == {"model": "m2"}


def test_chosen_pairs_play_both_ways_in_every_replicate() -> None:
    meetings = schedule(4, 12, [(0, 3), (1, 3), (2, 3)])
    assert {(one.replicate, one.first, one.second) for one in meetings} == {
        (replicate, *pair) for replicate in (0, 1) for k in range(3) for pair in ((k, 3), (3, k))
    }


def test_instructions_of_ones_own() -> None:
    check_system_prompt(Wording(name="mine", text="Keep {secret} from {other}; {scoring}"))
    assert fill("{name}: {secret} {x}", {"name": "A", "secret": "{name}"}) == "A: {name} {x}", "filled in once"
    with pytest.raises(UsageError, match="no field"):
        check_system_prompt(Wording(name="mine", text="{secret} {nam}"))
    with pytest.raises(UsageError, match="lacks"):
        check_system_prompt(Wording(name="mine", text="Say nothing."))


def test_too_many_and_double_levels() -> None:
    with pytest.raises(UsageError, match="temperature: a level"):
        arms(Factors(models=(ONE,), temperatures=(1.0, 1.0)))
    with pytest.raises(UsageError, match="more than 1000"):
        arms(Factors(models=(ONE,), max_tokens=tuple(range(1, 1002))))
