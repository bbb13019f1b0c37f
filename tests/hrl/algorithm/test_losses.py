"""The policy gradient, compared with its definition, and the effects of denominator, mask and clip."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from r2v.hrl.algorithm.advantage import discounted, gae
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.algorithm.losses import (
    baseline_loss,
    clipped_loss,
    critic_loss,
    critic_targets,
    policy_loss,
    token_weights,
)
from tests.hrl import tabular_mdp

pytestmark = pytest.mark.numerical

ONE = torch.ones(1, 1, dtype=torch.bool)


def logits(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3,), (3, 2), (3, 2, 3)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def actor_gradient(first: Tensor, hint: Tensor, second: Tensor, gamma: float) -> list[Tensor]:
    """Return the gradient of `policy_loss` for all 18 paths as a batch, weighted by probability; turn 2 weighs
    `gamma`."""
    rewards = (tabular_mdp.first_score(), tabular_mdp.second_score())
    policies = tabular_mdp.Policies.of(first, hint.detach(), second)
    known = tabular_mdp.worth(policies, rewards)
    trajectories = policies.trajectories().detach()
    first_turn = policy_loss(
        policies.first.log()[:, None], token_weights(known.q1 - known.v1) * policies.first.detach()[:, None], ONE, 1.0
    )
    better = discounted((known.q2 - known.v2[..., None]).reshape(-1), torch.ones(18, dtype=torch.long), gamma)
    second_turn = policy_loss(
        policies.second.log().reshape(-1, 1), token_weights(better) * trajectories.reshape(-1, 1), ONE, 1.0
    )
    return [-one for one in torch.autograd.grad(first_turn + second_turn, (first, second))]


@pytest.mark.parametrize("seed", range(5))
def test_advantages_give_the_gradient_of_the_return(seed: int) -> None:
    first, hint, second = logits(seed)
    value = tabular_mdp.worth(
        tabular_mdp.Policies.of(first, hint, second), (tabular_mdp.first_score(), tabular_mdp.second_score())
    ).v1
    wanted = torch.autograd.grad(value, (first, second))
    for ours, theirs in zip(actor_gradient(first, hint, second, tabular_mdp.GAMMA), wanted, strict=True):
        assert float((ours - theirs).abs().max()) <= 6e-17
        assert float(theirs.abs().max()) > 1e-3
    undiscounted = actor_gradient(first, hint, second, 1.0)[1]
    taught = wanted[1].abs() > 1e-6  # after answer 2 and hint 1 all second answers have the same value
    assert int(taught.sum()) == 15
    assert float((undiscounted / wanted[1] - 1 / 0.9)[taught].abs().max()) < 1e-9


def guidance_gradient(first: Tensor, hint: Tensor, second: Tensor, reward: Tensor) -> Tensor:
    """Return d/d(hint logits) of the loss over all paths, with `reward` (A, G, B) as the weight of each."""
    policies = tabular_mdp.Policies.of(first.detach(), hint, second.detach())
    logp = policies.hint.log()[:, :, None].expand(3, 2, 3)
    weights = token_weights(reward.reshape(-1)) * policies.trajectories().detach().reshape(-1, 1)
    return -torch.autograd.grad(policy_loss(logp.reshape(-1, 1), weights, ONE, 1.0), hint)[0]


@pytest.mark.parametrize("seed", range(5))
def test_taking_off_the_first_score_changes_no_gradient(seed: int) -> None:
    first, hint, second = logits(seed)
    r1, r2 = tabular_mdp.first_score()[:, None, None], tabular_mdp.second_score()
    plain = guidance_gradient(first, hint, second, r2)
    assert float((guidance_gradient(first, hint, second, r2 - r1) - plain).abs().max()) <= 1e-16
    assert float(plain.abs().max()) > 1e-3


def test_the_first_scores_own_gradient_is_exactly_nothing() -> None:
    """All probabilities are binary fractions, so that no rounding occurs."""
    even = [torch.zeros(3), torch.zeros(3, 2, requires_grad=True), torch.log(torch.tensor([0.5, 0.25, 0.25]))]
    first, hint, second = (one.double() for one in even)
    alone = guidance_gradient(
        first, hint, second.expand(3, 2, 3), tabular_mdp.first_score()[:, None, None].expand(3, 2, 3)
    )
    assert alone.eq(0.0).all()


def test_one_turn_is_reinforce_with_a_baseline() -> None:
    theta = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    rewards, values = torch.rand(5, 1, dtype=torch.float64), torch.rand(5, 1, dtype=torch.float64)
    drawn = torch.tensor([[0], [2], [1], [1], [0]])
    logp = theta.log_softmax(-1).gather(-1, drawn)
    present = torch.ones(5, 1, dtype=torch.bool)
    advantage = gae(rewards, values, 0.95, 0.9)[:, 0]
    loss = policy_loss(logp, token_weights(advantage), present, len(present))
    ours = torch.autograd.grad(loss, theta)[0]
    score = torch.nn.functional.one_hot(drawn[:, 0], 3) - theta.detach().softmax(-1)
    torch.testing.assert_close(ours, -(rewards - values) * score / 5, rtol=0, atol=1e-16)


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-probabilities (4, 6), those of the behaviour policy, advantages (4,) and a ragged mask."""
    generator = torch.Generator().manual_seed(seed)
    logp = -torch.rand(4, 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [1], [3], [2]])
    return logp, logp.clone(), torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64), mask


def test_a_token_weight_is_the_advantage_less_baseline_and_penalty() -> None:
    advantage = torch.tensor([1.0, 2.0], requires_grad=True)
    baseline = torch.tensor([[0.5, 0.25], [1.0, 0.0]], requires_grad=True)
    k1 = torch.tensor([[0.1, -0.1], [0.0, 0.2]], requires_grad=True)
    assert token_weights(advantage).shape == (2, 1) and not token_weights(advantage).requires_grad
    assert not token_weights(advantage, baseline).requires_grad
    weights = token_weights(advantage, baseline, 0.5 * k1)
    assert weights.tolist() == [pytest.approx([0.45, 0.8]), pytest.approx([1.0, 1.9])]
    assert not weights.requires_grad


def test_no_penalty_is_taken_unless_a_weight_is_given() -> None:
    advantage, k1 = torch.tensor([1.0, 2.0]), torch.tensor([[0.1, -0.1], [0.0, 0.2]])
    assert token_weights(advantage).tolist() == [[1.0], [2.0]]
    assert token_weights(advantage, penalty=k1).tolist() == [pytest.approx([0.9, 1.1]), pytest.approx([2.0, 1.8])]


def test_each_loss_is_the_sum_over_marked_tokens_by_hand() -> None:
    """Three tokens are marked; the fourth, with equally good figures, is not."""
    mask = torch.tensor([[True, True], [True, False]])
    logp = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], dtype=torch.float64)
    weights = torch.tensor([[1.0, 0.5], [-2.0, 7.0]], dtype=torch.float64)
    assert policy_loss(logp, weights, mask, 2).item() == -((-1.0) + (-1.0) + 6.0) / 2
    ratio = torch.tensor([[1.1, 1.5], [0.25, 3.0]], dtype=torch.float64)
    behaviour = logp - ratio.log()
    by_hand = {0.2: 1.1 + 1.2 * 0.5 - 2 * 0.8, 0.05: 1.05 + 1.05 * 0.5 - 2 * 0.95, 0.9: 1.1 + 1.5 * 0.5 - 2 * 0.25}
    for clip, total in by_hand.items():
        assert clipped_loss(logp, behaviour, weights, mask, 2, clip).item() == pytest.approx(-total / 2)
    usual = clipped_loss(logp, behaviour, weights, mask, 2)
    assert usual.item() == pytest.approx(-by_hand[0.2] / 2), "a fifth, where nothing else is asked for"
    advantage = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert baseline_loss(logp, advantage, mask, 2).item() == (4.0 + 9.0 + 4.0) / 2


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_what_is_not_marked_counts_nothing(bad: float) -> None:
    logp, behaviour, advantage, mask = batch()
    spoiled = torch.where(mask, logp, bad).requires_grad_()
    logp.requires_grad_()
    for of in (
        lambda own: policy_loss(own, token_weights(advantage), mask, 12),
        lambda own: clipped_loss(own, behaviour, token_weights(advantage), mask, 12),
        lambda own: baseline_loss(own, advantage, mask, 12),
    ):
        assert of(spoiled).item() == of(logp).item()
        ours, theirs = (torch.autograd.grad(of(own), own)[0] for own in (spoiled, logp))
        assert torch.equal(ours, theirs)


def test_ppo_is_reinforce_where_nothing_has_moved() -> None:
    logp, behaviour, advantage, mask = batch()
    logp.requires_grad_()
    losses = (
        policy_loss(logp, token_weights(advantage), mask, 4),
        clipped_loss(logp, behaviour, token_weights(advantage), mask, 4),
    )
    ours, theirs = (torch.autograd.grad(loss, logp)[0] for loss in losses)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-16)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [
        (1.5, 1.0, -1.2, False),
        (1.5, -1.0, 1.5, True),
        (0.5, 1.0, -0.5, True),
        (0.5, -1.0, 0.8, False),
        (1.1, 1.0, -1.1, True),
    ],
)
def test_ppo_clips_what_would_gain_from_going_on(ratio: float, advantage: float, loss: float, moves: bool) -> None:
    logp = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    got = clipped_loss(logp, torch.zeros_like(logp), torch.tensor([[advantage]], dtype=torch.float64), ONE, 1.0, 0.2)
    assert got.item() == pytest.approx(loss)
    assert float(torch.autograd.grad(got, logp)[0]) == pytest.approx(-advantage * ratio if moves else 0.0)


def test_the_critics_targets_by_hand() -> None:
    rewards, done = torch.tensor([0.5, 1.0]), torch.tensor([False, True])
    ahead = torch.tensor([[2.0, float("nan")], [1.0, 7.0]], requires_grad=True)
    drawn = torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[2.0, 0.0], [4.0, -4.0]]])
    wanted = critic_targets(rewards, done, ahead, drawn, 0.5)
    assert wanted.q.tolist() == [[1.5, 1.0], [1.0, 1.0]] and not wanted.q.requires_grad
    assert wanted.v.tolist() == [[2.0, 0.0], [1.0, 0.0]]
    assert wanted.floor.tolist() == [0.5, -2.0]
    assert critic_targets(rewards, done, ahead, drawn, 0.5, pessimistic=True).q.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_the_critics_targets_are_means_over_actions_however_many_states_there_are() -> None:
    """Three states and two actions: a mean over the wrong axis has another length."""
    drawn = torch.tensor([[[1.0, 3.0], [0.0, 4.0], [5.0, 5.0]], [[2.0, 0.0], [4.0, 0.0], [1.0, 9.0]]])
    known = critic_targets(torch.zeros(3), torch.tensor([False] * 3), torch.ones(2, 3), drawn, 0.5)
    assert known.v.tolist() == [[2.0, 2.0, 5.0], [1.0, 2.0, 5.0]]
    assert known.floor.tolist() == [0.5, 0.0, 3.0] and known.q.tolist() == [[0.5] * 3] * 2


def test_the_critics_loss_sums_over_heads_and_divides_by_the_whole_batch() -> None:
    said = CriticValues(q=torch.ones(2, 3, requires_grad=True), v=torch.zeros(2, 3), floor=torch.full((3,), 2.0))
    wanted = CriticValues(q=torch.zeros(2, 3), v=torch.full((2, 3), 3.0), floor=torch.zeros(3, requires_grad=True))
    loss = critic_loss(said, wanted, 12)
    assert loss.item() == (6 * 1 + 6 * 9 + 3 * 4) / 12
    loss.backward()
    assert said.q.grad is not None and wanted.floor.grad is None


def test_the_token_baseline_is_fit_to_the_advantage() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    predicted = torch.tensor([[0.0, 1.0], [2.0, 9.0]], requires_grad=True)
    advantage = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = baseline_loss(predicted, advantage, mask, 3)
    assert loss.item() == pytest.approx((1 + 0 + 4) / 3)
    loss.backward()
    assert advantage.grad is None and predicted.grad is not None and float(predicted.grad[1, 1]) == 0.0
