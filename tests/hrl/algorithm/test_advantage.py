"""Advantages, compared with sums worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from r2v.errors import UsageError
from r2v.hrl.algorithm.advantage import critic_advantage, discounted, gae, leave_one_out
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.algorithm.losses import policy_loss, token_weights
from tests.hrl import tabular_mdp

pytestmark = pytest.mark.numerical

FIRST, HINT, SECOND = [0.0, 0.74, 0.73], [-0.73, -0.06, -0.77], [0.0, -0.80, -0.86]
"""Logits of a policy whose variances are known to four digits: of the first answer, of hint 1 after each, of the second
answer."""
DRAWS = 60_000


def policies() -> tabular_mdp.Policies:
    hints = torch.stack([torch.zeros(3, dtype=torch.float64), torch.tensor(HINT, dtype=torch.float64)], -1)
    return tabular_mdp.Policies.of(
        torch.tensor(FIRST, dtype=torch.float64), hints, torch.tensor(SECOND, dtype=torch.float64).expand(3, 2, 3)
    )


def rewards() -> dict[str, Tensor]:
    """Return the candidate rewards of a hint, (A, G, B) each."""
    r1, r2, known = tabular_mdp.first_score()[:, None, None], tabular_mdp.second_score(), policies()
    expected = (known.hint * (known.second * r2).sum(-1)).sum(-1)[:, None, None] - r1
    delta = r2 - r1
    return {"r2": r2, "delta": delta, "delta less its mean": delta - expected, "clipped": delta.clamp_min(0)}


def draw_paths() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    path = torch.multinomial(policies().trajectories().reshape(-1), DRAWS, replacement=True, generator=generator)
    return path // 6, path // 3 % 2, path % 3


def sampled(reward: Tensor) -> Tensor:
    """Return gradients of the hint's logits (DRAWS, A, G), one per episode."""
    a, g, b = draw_paths()
    theta = policies().hint.log().expand(DRAWS, 3, 2).clone().requires_grad_()
    logp = theta.log_softmax(-1)[torch.arange(DRAWS), a, g][:, None]
    loss = policy_loss(logp, token_weights(reward[a, g, b]), torch.ones_like(logp, dtype=torch.bool), 1.0)
    return -torch.autograd.grad(loss, theta)[0]


@pytest.mark.parametrize(("paid", "variance"), [("r2", 0.0937), ("delta", 0.1780), ("delta less its mean", 0.0633)])
def test_the_difference_needs_a_baseline_that_knows_the_first_answer(paid: str, variance: float) -> None:
    """Summed over the six logits; the sampled variance within 4 standard errors, the enumerated one to the last
    digit."""
    single = sampled(rewards()[paid])
    squares = (single - single.mean(0)).square().sum((1, 2))
    assert abs(float(squares.mean()) - variance) < 4 * float(squares.std()) / math.sqrt(DRAWS) + 5e-5
    known, mean = policies(), single.new_zeros(3, 2)
    second_moment = torch.zeros_like(mean)
    for g in range(2):
        score = torch.nn.functional.one_hot(torch.tensor(g), 2) - known.hint
        chance, reward = known.trajectories()[:, g], rewards()[paid][:, g]
        mean += score * (chance * reward).sum(-1, keepdim=True)
        second_moment += score.square() * (chance * reward.square()).sum(-1, keepdim=True)
    assert float((second_moment - mean.square()).sum()) == pytest.approx(variance, abs=5e-5)


def test_a_difference_clipped_at_nothing_has_another_gradient() -> None:
    honest, clipped = (sampled(rewards()[paid]) for paid in ("delta less its mean", "clipped"))
    error = 4 * float((honest - clipped).std(0).max()) / math.sqrt(DRAWS)
    assert error < 0.01
    assert abs(float((honest.mean(0) - clipped.mean(0)).abs().max()) - 0.0157) < error


def test_leaving_one_out_is_unbiased_and_calms_as_the_mean_does() -> None:
    """Two hints per first answer: the mean gradient is that of r2 itself, and its variance below that of the bare
    difference."""
    generator = torch.Generator().manual_seed(4)
    known, groups = policies(), DRAWS // 2
    a = torch.multinomial(known.first, groups, replacement=True, generator=generator)
    g = torch.multinomial(known.hint[a], 2, replacement=True, generator=generator)
    b = torch.multinomial(known.second[a[:, None], g].reshape(-1, 3), 1, generator=generator).reshape(-1, 2)
    advantage = leave_one_out(rewards()["delta"][a[:, None], g, b])
    score = torch.nn.functional.one_hot(g, 2) - known.hint[a][:, None]
    single = (advantage[..., None] * score).mean(1)
    mean = torch.stack([single[a == first].sum(0) for first in range(3)]) / groups
    wanted = sampled(rewards()["r2"]).mean(0)
    assert float((mean - wanted).abs().max()) < 0.008
    assert 2 * float(single.square().sum(1).mean() - mean.square().sum()) < 0.1780


def noisy(draws: int) -> CriticValues:
    """Return critic values with noise of 0.2 in every head, V and floor fitted to the means; two answers, equally
    likely. Shape (..., answers) for every draw of the noise."""
    noise = torch.from_numpy(np.random.default_rng(0).normal(0, 0.2, (2, draws, 2)))
    q = torch.tensor([0.3, 0.3], dtype=torch.float64) + noise
    return CriticValues(
        q=q, v=q.mean(-1, keepdim=True).expand_as(q), floor=q.amin(0).mean(-1, keepdim=True).expand(draws, 2)
    )


def test_the_floor_leaves_no_bias_and_archers_baseline_does() -> None:
    """The bias of ArCHer's baseline is -0.2 (1 - 1/sqrt 2) / sqrt pi = -0.033 for two heads with independent noise in
    each value."""
    values = noisy(200_000)
    assert float(critic_advantage(values).mean(-1).abs().max()) < 1e-15
    biased = critic_advantage(values, "min_v").mean(-1)
    assert float(biased.mean()) == pytest.approx(-0.2 * (1 - math.sqrt(0.5)) / math.sqrt(math.pi), abs=1e-3)
    assert round(float(biased.mean()), 3) == -0.033


def test_an_advantage_teaches_the_critic_nothing() -> None:
    values = CriticValues(
        q=torch.ones(2, 3, requires_grad=True),
        v=torch.ones(2, 3, requires_grad=True),
        floor=torch.ones(3, requires_grad=True),
    )
    assert not critic_advantage(values).requires_grad and not critic_advantage(values, "min_v").requires_grad
    assert not gae(torch.ones(1, 3), values.v[:1], 0.9, 0.5).requires_grad


REWARDS = torch.tensor([[1.0, -0.5, 2.0], [0.25, 1.0, 0.0]], dtype=torch.float64)
VALUES = torch.tensor([[0.5, 1.5, -1.0], [2.0, 0.75, 0.0]], dtype=torch.float64)


def test_lambda_0_is_one_step_and_lambda_1_the_whole_return() -> None:
    g = 0.9
    steps = [[1 + g * 1.5 - 0.5, -0.5 + g * -1.0 - 1.5, 2.0 + 1.0], [0.25 + g * 0.75 - 2.0, 1.0 - 0.75, 0.0]]
    returns = [[1 + g * -0.5 + g * g * 2 - 0.5, -0.5 + g * 2 - 1.5, 3.0], [0.25 + g - 2.0, 0.25, 0.0]]
    for lam, wanted in ((0.0, steps), (1.0, returns)):
        torch.testing.assert_close(
            gae(REWARDS, VALUES, g, lam), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-15
        )


@pytest.mark.parametrize("lam", [0.3, 0.95])
def test_between_them_it_is_the_weighted_sum_of_errors(lam: float) -> None:
    g = 0.9
    delta = gae(REWARDS, VALUES, g, 0.0)
    wanted = [sum((g * lam) ** (i - t) * float(delta[0, i]) for i in range(t, 3)) for t in range(3)]
    assert gae(REWARDS, VALUES, g, lam)[0].tolist() == pytest.approx(wanted, abs=1e-15)


def test_two_hints_advantages_sum_to_nothing() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 1.0]])
    assert leave_one_out(rewards).tolist() == [[1.0, -1.0], [0.0, 0.0], [-2.0, 2.0]]
    assert leave_one_out(rewards).sum(-1).eq(0.0).all()
    assert leave_one_out(torch.tensor([3.0, 0.0, 0.0])).tolist() == [3.0, -1.5, -1.5]


def test_one_hint_has_no_other_to_compare_with() -> None:
    with pytest.raises(UsageError, match=r"1 hint .* hierarchical\.guidance\.hints"):
        leave_one_out(torch.ones(4, 1))


def test_later_turns_count_as_much_as_they_are_discounted() -> None:
    weighted = discounted(torch.ones(3, dtype=torch.float64), torch.tensor([0, 1, 2]), 0.9)
    assert weighted.tolist() == pytest.approx([1.0, 0.9, 0.81])
