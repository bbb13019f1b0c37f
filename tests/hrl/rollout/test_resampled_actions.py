"""Answers drawn for the critic's targets: once per state and version, whoever the caller is."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import CriticConfig
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.rollout.resampled_actions import ActionResampler
from r2v.hrl.tasks.prompts import Prompter

from ..playing import PROBLEMS, build, save_model, settings, stirred

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Roles:
    return stirred(build(save_model(tmp_path_factory.mktemp("model"))))


def states(roles: Roles) -> list[tuple[int, ...]]:
    return [Prompter(roles.tokenizer).answer(problem, []) for problem in PROBLEMS]


def test_a_state_is_drawn_for_once_in_a_version(roles: Roles) -> None:
    draws, own = ActionResampler(roles, settings(), (3,)), states(roles)
    first = draws.sample([*own, own[0]], 0)
    assert [len(one) for one in first] == [2] * 6 and first[5] == first[0] and draws.generated == 10
    assert draws.sample(own[::-1], 0) == first[4::-1] and draws.generated == 10
    assert draws.sample(own, 1) != first[:5] and draws.generated == 20


def test_draws_depend_on_state_and_version_alone(roles: Roles) -> None:
    own = states(roles)
    wanted = ActionResampler(roles, settings(), (3,)).sample(own, 2)
    other = ActionResampler(roles, settings(), (3,), RolloutRows(rows={"actor": 3}, read=2))
    other.sample(own[:2], 1)
    assert [other.sample([state], 2)[0] for state in own[::-1]][::-1] == wanted
    assert ActionResampler(roles, settings(), (4,)).sample(own, 2) != wanted
    assert any(one[0] != one[1] for one in wanted)


def test_answers_are_whole_and_as_long_as_answers_may_be(roles: Roles) -> None:
    drawn = [
        answer
        for one in ActionResampler(roles, settings(critic=CriticConfig(draws=8)), (3,)).sample(states(roles), 0)
        for answer in one
    ]
    assert len(drawn) == 40 and any(answer[-1] == 2 for answer in drawn)
    assert all(1 <= len(answer) <= 6 and (answer[-1] == 2 or len(answer) == 6) for answer in drawn)


def test_a_later_version_forgets_the_one_before(roles: Roles) -> None:
    """Draws of an actor that is gone are never returned again, and take no memory."""
    draws, own = ActionResampler(roles, settings(), (3,)), states(roles)
    before = draws.sample(own, 0)
    draws.sample(own[:1], 1)
    assert draws.sample(own, 0) == before and draws.generated == 10 + 2 + 10


def test_twenty_updates_of_256_rows_are_a_few_answers(tmp_path: Path, roles: Roles) -> None:
    """ArCHer would draw 20 x 256 answers; 5 states need only 5."""
    draws, own = ActionResampler(roles, settings(critic=CriticConfig(draws=1)), (3,)), states(roles)
    for update in range(20):
        draws.sample([own[(update + row) % 5] for row in range(256)], 0)
    assert draws.generated == 5
