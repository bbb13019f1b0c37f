"""The closed forms of playing equal the loops that they sum up."""

from __future__ import annotations

import pytest

from r2v.pipeline.plan.workload import Workload, branches, branches_at_most, episode


@pytest.mark.parametrize("length", [1, 2, 15, 30])
@pytest.mark.parametrize("copies", [True, False])
def test_branches_sum_over_the_states_of_an_episode(length: int, copies: bool) -> None:
    resets = steps = asked = 0
    for state in range(length):
        resets += not copies
        steps += (0 if copies else state) + length - state
        asked += length - state - 1
    found = branches(length, each=1, copies=copies, student=1, llm=2)
    assert (found.branches, found.resets, found.steps) == (length, resets, steps)
    assert (found.student, found.drawn, found.llm) == (asked, asked, 2 * asked)
    assert branches(length, each=2, copies=copies).steps == 2 * steps
    first = branches_at_most(length, count=length, copies=copies, llm=2)
    assert first.steps >= steps and first.llm >= found.llm and first.resets == resets
    if not copies:
        assert first.steps == steps, "a replay and what is played on are an episode together"


def test_figures_of_thirty_steps() -> None:
    """Without copies, every action differing: an episode with its branches, and with three candidates a state."""
    plain = episode(30, student=1)
    assert (plain.resets, plain.steps, plain.student) == (1, 30, 30)
    one = episode(30) + branches(30, each=1, copies=False)
    assert (one.resets, one.steps) == (31, 930)
    three = episode(30) + branches(30, each=3, copies=False)
    assert (three.resets, three.steps) == (91, 2730)


def test_samples_are_one_more_question_and_as_many_replies() -> None:
    drawn = episode(10, student=1, samples=5, llm=1, verifier=6)
    assert (drawn.student, drawn.drawn, drawn.llm, drawn.verifier) == (20, 60, 10, 60)
    assert episode(10, samples=4).student == 10


def test_work_adds_up() -> None:
    assert episode(3, student=1).times(4) + Workload(steps=1) == Workload(
        episodes=4, resets=4, steps=13, student=12, drawn=12
    )
