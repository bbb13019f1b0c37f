"""A perturbation from outside the package: the file of docs/extending/perturbation.md, live and stored."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r2v.config import CategoryConfig, InferenceConfig, PerturbationsConfig, identity, load, section
from r2v.data.episode import Episode
from r2v.envs.base import Task
from r2v.envs.desk import Desk
from r2v.errors import UsageError
from r2v.perturb.offline import Rejected, twin_of
from r2v.perturb.schedule import Schedule, make_schedule
from r2v.rollout.session import RolloutWorld
from tests.docs.pages import REPOSITORY, blocks_of
from tests.replaying import replay

PAGE = REPOSITORY / "docs" / "extending" / "perturbation.md"
NAME = "fog_of_page:FOG"
FILE = NAME.partition(":")[0] + ".py"
Make = Callable[..., PerturbationsConfig]


@pytest.fixture
def fog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: Callable[..., PerturbationsConfig]
) -> PerturbationsConfig:
    """Return a configuration of fog alone, with its module in the folder of the command."""
    (text,) = (block.text for block in blocks_of(PAGE) if block.language == "python")
    (tmp_path / FILE).write_text(text)
    monkeypatch.delitem(sys.modules, "fog_of_page", raising=False)  # another test's folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return dataclasses.replace(only(), extra={NAME: CategoryConfig(prob=0.3)})


def test_it_hits_live_episodes_and_a_replay_meets_the_same_hits(
    fog: PerturbationsConfig, play: Callable[..., Episode], desk: Desk
) -> None:
    episodes = [play(index, fog) for index in range(6)]
    hits = [one for episode in episodes for step in episode.steps for one in step.perturbations]
    assert {one.category for one in hits} == {NAME} and all(one.params["hidden"] for one in hits)
    assert {episode.perturbation_type for episode in episodes} <= {"none", "partial_observability"}
    assert any("(fog)" in step.observation.raw_text for episode in episodes for step in episode.steps)
    recorded = section(PerturbationsConfig, identity(fog))
    world = RolloutWorld(desk, recorded, InferenceConfig(max_steps=20))
    assert [replay(world, episode, desk.tasks()[index]) for index, episode in enumerate(episodes)] == [None] * 6


def test_stored_episodes_are_edited_as_the_live_environment_would_show_them(
    fog: PerturbationsConfig, play: Callable[..., Episode], desk: Desk
) -> None:
    schedule = make_schedule(desk, fog, "noisy", 101)
    assert schedule.active == (NAME,)
    twins = [twin_of(play(index), schedule, "annotate", max_steps=20) for index in range(40)]
    made = [twin for twin in twins if isinstance(twin, Episode)]
    assert made and Rejected.LOST_SUPPORT in twins, "fog hides, so some twins would ask for what nobody can see"
    for twin in made:
        hit = [step for step in twin.steps if step.perturbations]
        assert hit and all("(fog)" in step.observation.raw_text for step in hit)


def test_it_is_named_in_a_file_or_an_override_and_may_be_held_out(fog: PerturbationsConfig, tmp_path: Path) -> None:
    (block,) = (block.text for block in blocks_of(PAGE) if block.language == "yml")
    (tmp_path / "fog.yaml").write_text(block.replace("fog:FOG", NAME))
    assert load(tmp_path / "fog.yaml").perturbations.extra[NAME].prob == 0.2
    words = [f"perturbations.extra[{NAME}].prob=0.4", f"perturbations.held_out=['{NAME}']"]
    config = load(None, words).perturbations
    assert NAME not in config.active("noisy") and config.active("shift")[NAME].prob == 0.4


def test_its_content_is_part_of_the_fingerprint_and_none_changes_nothing(
    fog: PerturbationsConfig, tmp_path: Path
) -> None:
    before = identity(load(None, [f"perturbations.extra[{NAME}].prob=0.4"]).perturbations)
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text() + "\n# edited\n")
    assert identity(load(None, [f"perturbations.extra[{NAME}].prob=0.4"]).perturbations) != before
    assert "extra" not in identity(PerturbationsConfig())


ROWS = "list\n" + "\n".join(f"row {number}" for number in range(8))
TASK = Task(task_id="t", goal="open row 4")
CALLS = ("get", "close", "close", "get", "find") * 8

OWN_MODULE = "own_of_test"
OWN = """
from r2v.perturb.category import Category, Change


def _alter(scene):
    return Change(text="busy " + scene.choice(("a", "b", "c", "d"), "word"))


def _again(scene):
    return Change(text=scene.text)


PASSES = Category(kind="tool_call", group="tool_flakiness", mode="explicit_transient", preserving=False, alter=_alter)
LASTS = Category(kind="tool_call", group="tool_flakiness", mode="explicit_permanent", preserving=False, alter=_alter)
NOTHING = Category(kind="edit", group="distractor", alter=_again)
MISTAKEN = Category(kind="edit", group="distractor", mode="permanent", alter=_again)
"""


@pytest.fixture
def own(fog: PerturbationsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Schedule]:
    """Return the schedule of one category of a user's own module."""
    (tmp_path / f"{OWN_MODULE}.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, OWN_MODULE, raising=False)

    def make(name: str, **given: Any) -> Schedule:
        extra = {f"{OWN_MODULE}:{name}": CategoryConfig(**given)}
        return make_schedule(Desk(), dataclasses.replace(fog, extra=extra), "noisy", 101)

    return make


def _answers(schedule: Schedule) -> list[str | None]:
    """Return the text of each failing call of an episode; None where it succeeds."""
    answers = [schedule.call(TASK, CALLS[: number + 1]) for number in range(len(CALLS))]
    return [answer and answer.text for answer in answers]


def _pages(perturbations: PerturbationsConfig) -> list[str]:
    schedule = make_schedule(Desk(), perturbations, "noisy", 101)
    return [schedule.page(TASK, step, ROWS, None).text for step in range(30)]


def test_every_key_of_an_extra_category_changes_what_is_played(fog: PerturbationsConfig) -> None:
    def given(**keys: Any) -> list[str]:
        return _pages(dataclasses.replace(fog, extra={NAME: CategoryConfig(**keys)}))

    some, untouched = given(prob=0.3), [ROWS] * 30
    assert some != untouched
    assert given(prob=0.0, severity=0.9) == untouched
    assert given(prob=0.6) != some
    assert given(prob=0.3, severity=0.9) != some
    with pytest.raises(UsageError, match="perturbations.modes: got fog_of_page:FOG, allowed: tool_error"):
        dataclasses.replace(fog, modes={NAME: "implicit_permanent"})


def test_the_severity_of_failing_calls_of_ones_own_is_the_chance_of_a_second_failure(
    own: Callable[..., Schedule],
) -> None:
    once, twice = (_answers(own("PASSES", prob=0.2, severity=severity)) for severity in (0.0, 1.0))
    hit = {at for at, answer in enumerate(once) if answer}
    assert hit and {at for at, answer in enumerate(twice) if answer} == hit | {at + 1 for at in hit if at + 1 < 40}


def test_failures_of_ones_own_that_are_permanent_last_for_their_tool(own: Callable[..., Schedule]) -> None:
    answers = _answers(own("LASTS", prob=0.15))
    begins = set()
    for tool in sorted(set(CALLS)):
        of_tool = [answer for answer, name in zip(answers, CALLS, strict=True) if name == tool]
        failed = [answer is not None for answer in of_tool]
        assert failed == sorted(failed)
        assert len(set(of_tool) - {None}) == 1, "the same failure again"
        begins.add(failed.index(True))
    assert len(begins) == 3, "each tool from a call of its own on"
    with pytest.raises(UsageError, match=r"own_of_test:LASTS\.severity=0\.9: changes nothing"):
        own("LASTS", prob=0.2, severity=0.9)


def test_a_change_that_changes_nothing_is_no_hit(own: Callable[..., Schedule]) -> None:
    assert own("NOTHING", prob=1.0).page(TASK, 3, ROWS, None).applied == ()


def test_a_mode_that_there_is_not_is_refused(own: Callable[..., Schedule]) -> None:
    with pytest.raises(UsageError, match="mode is 'permanent', allowed: explicit_transient"):
        own("MISTAKEN", prob=1.0).page(TASK, 3, ROWS, None)


def test_what_is_no_category_is_refused(fog: PerturbationsConfig, play: Callable[..., Episode]) -> None:
    with pytest.raises(UsageError, match="no module nowhere_at_all; searched"):
        PerturbationsConfig(extra={"nowhere_at_all:FOG": CategoryConfig(prob=0.1)})
    wrong = PerturbationsConfig(extra={"fog_of_page:Scene": CategoryConfig(prob=1.0)})
    with pytest.raises(UsageError, match="a type, not an r2v.perturb.category.Category"):
        play(0, wrong)
