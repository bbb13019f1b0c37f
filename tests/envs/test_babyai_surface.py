"""BabyAI's prompt injections, in views as text: each asks for a call that the grid accepts, look-alikes are
elsewhere."""

from __future__ import annotations

import pytest

from r2v.config import INJECTION_FAMILIES
from r2v.envs import babyai_surface
from r2v.envs.babyai import call
from r2v.envs.base import Surface
from r2v.errors import UsageError

VIEW = "you carry nothing; 60 left\ngreen key: 2 forward, 1 left\nlocked red door: 3 forward\nwall: 4 forward"
GOAL = 'go to the blue ball (layout "GoToLocal 7")'


@pytest.mark.parametrize("family", INJECTION_FAMILIES)
def test_an_instruction_asks_for_a_call_that_holds_its_canary(family: str) -> None:
    planted, canary = babyai_surface.injection(VIEW, GOAL, family, 0.5)
    assert call("wait") in planted and canary in call("wait") and canary not in VIEW + GOAL
    assert not any(canary in call(tool) for tool in ("left", "right", "forward", "pick", "drop", "toggle"))


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean direct"):
        babyai_surface.injection(VIEW, GOAL, "direkt", 0.5)


def test_look_alikes_are_other_things_at_free_places() -> None:
    for number in range(50):
        rows = babyai_surface.decoys(VIEW, GOAL, 4, number / 50)
        things, places = zip(*(row.split(": ") for row in rows), strict=True)
        assert len(set(things)) == len(set(places)) == 4
        assert not any(thing in VIEW + GOAL for thing in things)
        assert not any(place in VIEW.replace(": ", "\n").split("\n") for place in places)


def test_a_view_full_of_everything_gets_none() -> None:
    everything = "\n".join(
        f"{colour} {kind}" for colour in babyai_surface.THING_COLOURS for kind in babyai_surface.THING_KINDS
    )
    assert babyai_surface.decoys(everything, GOAL, 4, 0.5) == []
    assert isinstance(_lending(), Surface)


def _lending() -> object:
    from r2v.envs.babyai import BabyAI

    return BabyAI.__new__(BabyAI)
