"""The critic's training: its targets row by row, the rows it may learn from, and the inputs it must not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from r2v.config import ReplayConfig
from r2v.errors import EmptyResult
from r2v.hrl.models.encoders import padded_text
from r2v.hrl.rollout.transitions import Transitions, transitions_of
from r2v.hrl.training.critic_trainer import CriticTrainer

from .. import trainers
from ..trainers import BASE, trainer_of

pytestmark = pytest.mark.numerical

H = replace(BASE, turns=3, rewards=[0.0, 0.5, 1.0], critic=replace(BASE.critic, draws=2, max_tokens=24))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[CriticTrainer, Transitions]:
    """Return a critic that differs from its target, and the rows for its replay."""
    model = trainers.model_at(tmp_path_factory.mktemp("model"))
    trainer = trainer_of(model, Path("unused"), H, micro_batch_size=5)
    trainer._rollout()
    assert trainer.critic_trainer is not None
    with torch.no_grad():
        for tensor in trainer.roles.critic.parameters():
            tensor += 0.02 * torch.randn(tensor.shape, dtype=tensor.dtype, generator=torch.Generator().manual_seed(1))
    return trainer.critic_trainer, transitions_of(trainer.state.episodes, H.rewards, version=0)


def again(prompts: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return two answers that depend on the prompt."""
    return [[(prompt[-1], 7, 4), (sum(prompt) % 50 + 5,)] for prompt in prompts]


@pytest.mark.parametrize("pessimistic", [False, True])
def test_targets_are_the_slow_copys_word_row_by_row(
    pessimistic: bool, played: tuple[CriticTrainer, Transitions]
) -> None:
    critic_trainer, came = played
    critic_trainer.h = replace(H, critic=replace(H.critic, pessimistic=pessimistic))
    found, slow = critic_trainer.targets(critic_trainer.insert(came), again), critic_trainer.roles.target.critic
    for row, (seen, ahead, reward, done) in enumerate(
        zip(came.observations, came.next_observations, came.reward, came.done, strict=True)
    ):
        o, after = (padded_text(critic_trainer.roles.encode_for_critic([text])) for text in (seen, ahead))
        with torch.no_grad():
            q = torch.stack(
                [
                    slow.q_of(o, padded_text(critic_trainer.roles.encode_for_critic([answer])))
                    for answer in again([seen])[0]
                ]
            )[..., 0]
            v = slow.v_of(after)[:, 0]
        v = v.amin().expand(2) if pessimistic else v
        wanted = reward + (0.0 if done else H.gamma * v)
        torch.testing.assert_close(found.q[:, row], wanted.expand(2).double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(found.v[:, row], q.mean(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(found.floor[row], q.amin(1).mean(), rtol=0, atol=1e-12)


def test_without_draws_the_answers_that_were_given_stand_for_them(played: tuple[CriticTrainer, Transitions]) -> None:
    critic_trainer, came = played
    critic_trainer.h = H
    rows = critic_trainer.insert(came)
    own = dict(zip(came.observations, came.actions, strict=True))
    alike = [own[seen] == said for seen, said in zip(came.observations, came.actions, strict=True)]
    assert all(alike), "every state was answered once"
    asked = critic_trainer.targets(rows, lambda prompts: [[own[prompt]] * 2 for prompt in prompts])
    given = critic_trainer.targets(rows)
    torch.testing.assert_close(given.v, asked.v, rtol=0, atol=1e-12)
    torch.testing.assert_close(given.q, asked.q, rtol=0, atol=0)


def test_nothing_is_taken_from_behind_a_last_answer(played: tuple[CriticTrainer, Transitions]) -> None:
    critic_trainer, came = played
    rows = critic_trainer.insert(came)
    other = {**rows, "next_observation_ids": torch.where(came.done[:, None], 3, rows["next_observation_ids"])}
    assert torch.equal(critic_trainer.targets(other).q, critic_trainer.targets(rows).q)
    assert not torch.equal(
        critic_trainer.targets({**rows, "next_observation_ids": torch.full_like(rows["next_observation_ids"], 3)}).q,
        critic_trainer.targets(rows).q,
    )


def test_what_old_guidance_led_to_is_left_alone(played: tuple[CriticTrainer, Transitions], tmp_path: Path) -> None:
    critic_trainer, came = played
    young = CriticTrainer(critic_trainer.roles, replace(H, replay=ReplayConfig(capacity=100, max_age=2)), 0, 8, 160)
    young.insert(came)
    young.insert(replace(came, version=torch.full_like(came.version, 3)))
    count = len(came.done)
    for version, wanted in ((2, 2 * count), (3, count + int(came.done.sum())), (6, 2 * int(came.done.sum()))):
        assert int(young._usable(version).sum()) == wanted
    empty = CriticTrainer(critic_trainer.roles, replace(H, replay=ReplayConfig(capacity=100, max_age=0)), 0, 8, 160)
    empty.insert(Transitions(**{name: value[:2] for name, value in vars(came).items()}))
    with pytest.raises(EmptyResult, match=r"hierarchical\.replay\.max_age"):
        empty.step(0, 0, 9, again)


def test_an_error_is_the_loss_before_it_is_learned(played: tuple[CriticTrainer, Transitions]) -> None:
    critic_trainer, came = played
    critic_trainer.h = H
    rows = critic_trainer.insert(came)
    said, wanted = critic_trainer.values_of_answers(came.observations, came.actions), critic_trainer.targets(rows)
    by_hand = (
        ((said.q - wanted.q) ** 2).sum() + ((said.v - wanted.v) ** 2).sum() + ((said.floor - wanted.floor) ** 2).sum()
    )
    assert critic_trainer.td_error(rows) == pytest.approx(float(by_hand) / len(came.done), abs=1e-12)
    assert critic_trainer.target_distance() > 0.1
