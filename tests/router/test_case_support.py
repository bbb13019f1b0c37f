"""The index of the teacher's steps: known neighbours, its own task left out, and bytes that repeat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.data.episode import COPIED, Action, Episode, EpisodeMetadata, Observation, Step, StepLabel
from r2v.errors import EmptyResult, InputError
from r2v.router.case_support import ARRAYS, NAMES, CaseIndex, RecordedStep, recorded_steps, support

THINGS = ("lamp", "coin", "egg", "rope", "sword", "rug")


def step(
    number: int, thing: str, actions: tuple[str, ...], page: str, action: str, verb: str = "fetch"
) -> RecordedStep:
    pages = (*(f"page {k}" for k in range(len(actions))), page)
    goal = f"your task is to {verb} the {thing}"
    return RecordedStep(task_id=f"t{number}", goal=goal, observations=pages, actions=actions, action=action)


def corpus() -> list[RecordedStep]:
    """Return commands in plain text: a closed door is opened, a visible thing is taken."""
    steps = []
    for number, thing in enumerate(THINGS):
        steps.append(step(number, thing, (), "you are in a hall. the door is closed.", "open door"))
        steps.append(
            step(number, thing, ("open door",), f"an open door leads north. there is a {thing}.", f"take {thing}")
        )
    return steps


def nearest(index: CaseIndex, state: RecordedStep) -> tuple[tuple[str, float], ...]:
    return index.nearest(state.goal, state.observations[-1], state.actions, (), state.task_id)


def test_the_nearest_steps_act_as_the_teacher_did_in_such_a_state() -> None:
    index = CaseIndex.of(corpus(), (), 0)
    new = step(99, "harp", ("open door",), "an open door leads north. there is a harp.", "take harp")
    names = [name for name, _ in nearest(index, new)]
    assert names[: len(THINGS)] == ["take goal"] * len(THINGS) and set(names[len(THINGS) :]) == {"open page"}
    closed = step(99, "harp", (), "you are in a hall. the door is closed.", "open door")
    assert [name for name, _ in nearest(index, closed)][: len(THINGS)] == ["open page"] * len(THINGS)


def test_goals_of_one_kind_with_other_values_give_equal_neighbours() -> None:
    index = CaseIndex.of(corpus(), (), 0)
    harp, drum = (
        step(99, thing, ("open door",), f"an open door leads north. there is a {thing}.", "")
        for thing in ("harp", "drum")
    )
    assert nearest(index, harp) == nearest(index, drum)
    assert nearest(index, harp)[0][1] == 1.0, "the mark stands where the value was"
    assert nearest(index, harp) != nearest(index, replace(harp, goal="your task is to fetch the drum"))


def test_a_tasks_own_steps_are_left_out() -> None:
    odd = [replace(one, action="sing") if one.task_id == "t0" else one for one in corpus()]
    index = CaseIndex.of(odd, (), 0)
    own, other = odd[0], replace(odd[0], task_id="elsewhere")
    assert "sing" not in [name for name, _ in nearest(index, own)]
    assert "sing" in [name for name, _ in nearest(index, other)]


def test_support_counts_the_steps_that_act_alike() -> None:
    steps = (("a", 1.0), ("b", 0.9), ("a", 0.8), ("c", 0.5))
    figures = {"top_share": 0.5, "similarity_max": 1.0, "similarity_mean": 0.8}
    assert support(steps, "a") == {"share": 0.5, "rank": 0, **figures}
    assert support(steps, "c") == {"share": 0.25, "rank": 1, **figures}
    assert support(steps, "none") == {"share": 0.0, "rank": 3, **figures}


def test_equal_steps_make_equal_bytes_which_are_read_as_they_were(tmp_path: Path) -> None:
    for name in ("one", "two"):
        CaseIndex.of(corpus(), (), 0).save(tmp_path / name)
    for name in (ARRAYS, NAMES):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    read = CaseIndex.load(tmp_path / "one")
    assert [nearest(read, one) for one in corpus()] == [nearest(CaseIndex.of(corpus(), (), 0), one) for one in corpus()]


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    CaseIndex.of(corpus(), (), 0).save(tmp_path)
    (tmp_path / NAMES).write_text((tmp_path / NAMES).read_text().replace('"format": 1', '"format": 7'))
    with pytest.raises(InputError, match="format 7, this R2V reads 1"):
        CaseIndex.load(tmp_path)
    with pytest.raises(InputError, match="not an index of case support"):
        CaseIndex.load(tmp_path / "none")
    with pytest.raises(EmptyResult, match="2 steps of 1 tasks"):
        CaseIndex.of(corpus()[:2], (), 0)


def test_steps_are_those_that_the_teacher_decided() -> None:
    labels = (None, StepLabel(label_source=COPIED), StepLabel(label_source="judge"))
    steps = tuple(
        Step(step_idx=k, observation=Observation(raw_text=f"page {k}"), action=Action(raw_text=f"act {k}"), label=label)
        for k, label in enumerate(labels)
    )
    about = EpisodeMetadata(task_id="t", goal="go", benchmark="any", split="train")
    first, last = recorded_steps([Episode(episode_id="e", success=True, metadata=about, steps=steps)])
    assert (first.action, last.action) == ("act 0", "act 2")
    assert last.observations == ("page 0", "page 1", "page 2") and last.actions == ("act 0", "act 1")


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut", b"no archive"])
def test_damaged_arrays_are_refused_in_one_line(damage: bytes, tmp_path: Path) -> None:
    CaseIndex.of(corpus(), (), 0).save(tmp_path)
    (tmp_path / ARRAYS).write_bytes(damage)
    with pytest.raises(InputError, match="not an index of case support"):
        CaseIndex.load(tmp_path)
