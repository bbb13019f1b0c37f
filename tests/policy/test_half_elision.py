"""Half elision: the cut of a conversation equals its definition at every step, and prefixes stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from r2v.policy.half_elision import ELIDED, Cut, HalfElision, without_middle
from r2v.policy.prompt_encoder import build_messages
from r2v.randomness import generator
from r2v.wire.message import Message


def _count(message: Message) -> int:
    return 2 + len(message.content.split())


def _conversation(number: int, steps: int, words: int) -> tuple[Message, ...]:
    draw = generator("elision", number)
    sizes = [draw.randint(0 if step else 1, words) for step in range(steps + 1)]
    pages = [" ".join(f"w{draw.randrange(48)}" for _ in range(size)) for size in sizes]
    actions = [" ".join(["get"] * draw.randint(1, max(1, words // 8))) for _ in range(steps)]
    return build_messages(f"open w{number % 48}", pages, actions)


def _steps(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Return the conversation as it was at each of its observations."""
    return [messages[: i + 1] for i, message in enumerate(messages) if message.role == "tool"]


def _size(messages: Sequence[Message]) -> int:
    return sum(map(_count, messages))


@pytest.mark.parametrize("number", range(60))
def test_a_cut_holds_until_the_limit_is_reached_again_and_then_half_is_let_go(number: int) -> None:
    draw = generator("limit", number)
    limit, words = draw.randint(30, 200), draw.randint(3, 60)
    before = Cut(0, 0, 0)
    for messages in _steps(_conversation(number, draw.randint(1, 25), words)):
        elision = HalfElision(messages, _count)
        cut = elision.cut(limit)
        form = elision.form(cut)
        rest = _size(form[:-1])
        assert cut.room == limit - rest and cut.room >= min(_count(messages[-1]), limit // 2)
        kept = _size(elision.form(Cut(before.elided, before.dropped, 0)))
        if kept <= limit:
            assert (cut.elided, cut.dropped) == (before.elided, before.dropped), "nothing went without need"
        else:
            oldest = len(_steps(messages)) - 1
            assert _size(form) <= limit // 2 or cut.elided == oldest
            assert cut.dropped == before.dropped or (
                2 * rest <= limit - min(_count(messages[-1]), limit // 2) + 1 or cut.dropped == oldest
            )
        assert (cut.elided, cut.dropped) >= (before.elided, before.dropped)
        before = cut


def test_the_oldest_observations_become_markers_and_what_is_shorter_than_a_marker_stays() -> None:
    pages = ["a b c d e f", "", "g h i j k l", "m n o p q r"]
    messages = build_messages("goal", pages, ["x", "y", "z"])
    elision = HalfElision(messages, _count)
    whole = _size(messages)
    assert elision.fits(whole) and elision.form(elision.cut(whole)) == list(messages)
    assert not elision.fits(whole - 1)
    form = elision.form(elision.cut(whole - 1))
    assert [m.content for m in form] == ["goal", ELIDED, "x", "", "y", ELIDED, "z", pages[-1]]


def test_old_turns_go_where_old_observations_are_not_enough_and_the_goal_never() -> None:
    messages = build_messages("a goal", ["page"] * 21, ["go on and on"] * 20, system="be brief")
    elision = HalfElision(messages, _count)
    cut = elision.cut(60)
    form = elision.form(cut)
    assert 0 < cut.dropped < 20 and _size(form) <= 60
    assert [m.content for m in form[:2]] == ["be brief", "a goal"] and form[-1] == messages[-1]
    longer = HalfElision((*messages, Message(role="assistant", content="go"), messages[-1]), _count)
    assert longer.form(longer.cut(60))[: len(form)] == form, "the next prompt begins like this one"


def test_conversations_without_observations_are_left_as_they_are() -> None:
    goal = build_messages("a goal", [""], [])
    elision = HalfElision(goal, _count)
    assert elision.newest is None and elision.form(elision.cut(10)) == list(goal)
    assert elision.cut(2).room < 0
    silent = HalfElision(build_messages("goal", ["", "one two"], ["go"]), _count)
    assert silent.cut(3).elided == 0 and silent.opening_size == 6


def test_a_text_without_its_middle_keeps_both_ends() -> None:
    assert without_middle("abcdefghij", 5) == f"ab\n{ELIDED}\nij"
    assert without_middle("abcdefghij", 0) == f"\n{ELIDED}\n"


def test_a_page_too_long_for_any_prompt_lets_every_older_one_go() -> None:
    messages = build_messages("goal", ["a b c", "d " * 500, "e f"], ["x", "y"])
    at_the_page = HalfElision(messages[:4], lambda m: min(_count(m), 51))
    cut = at_the_page.cut(50)
    assert cut.elided == 1 and cut.room == 50 - 3 - 3 - 3
    after = HalfElision(messages, lambda m: min(_count(m), 51))
    assert [m.content for m in after.form(after.cut(50))][3] == ELIDED
    assert replace(after.form(after.cut(50))[-1], content="") == Message(role="tool", content="")
