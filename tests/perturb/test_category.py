"""A perturbation from outside the package: the file that docs/extending/perturbation.md shows, live and stored."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from r2v.config import ExtraCategoryConfig, InferenceConfig, PerturbationsConfig, identity, load, section
from r2v.data.episode import Episode
from r2v.envs.desk import Desk
from r2v.errors import UsageError
from r2v.perturb.offline import annotate
from r2v.perturb.report import Rejected
from r2v.perturb.schedule import make_schedule
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
    """Fog alone, its module in the folder where the command is started."""
    (text,) = (block.text for block in blocks_of(PAGE) if block.language == "python")
    (tmp_path / FILE).write_text(text)
    monkeypatch.delitem(sys.modules, "fog_of_page", raising=False)  # another test's folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return dataclasses.replace(only(), extra={NAME: ExtraCategoryConfig(prob=0.3)})


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
    twins = [annotate(play(index), schedule, max_steps=20) for index in range(40)]
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


def test_what_is_no_category_is_refused(fog: PerturbationsConfig, play: Callable[..., Episode]) -> None:
    with pytest.raises(UsageError, match="no module nowhere_at_all; searched"):
        PerturbationsConfig(extra={"nowhere_at_all:FOG": ExtraCategoryConfig(prob=0.1)})
    wrong = PerturbationsConfig(extra={"fog_of_page:Scene": ExtraCategoryConfig(prob=1.0)})
    with pytest.raises(UsageError, match="a type, not an r2v.perturb.category.Category"):
        play(0, wrong)
