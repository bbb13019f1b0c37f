"""Advantages: the excess of an answer or a hint over its expected value.

Answers are compared with the critic (`critic_advantage`) or the later rewards (`gae`), hints with the other hints to
the same answer (`leave_one_out`). No gradient flows through an advantage.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from r2v.errors import UsageError
from r2v.hrl.algorithm.critic import CriticValues

Baseline = Literal["v_of_min", "min_v"]


def critic_advantage(values: CriticValues, baseline: Baseline = "v_of_min") -> Tensor:
    """Return A (N,) = min_i Q_i(o, y) - Vhat(o).

    `v_of_min` uses the head that is fit to E_y[min_i Q_i], so that sum_y pi(y) A(y) = 0. `min_v` is ArCHer's
    min_i V_i(o): as E[min] <= min E, it is biased below 0, by 0.033 for two answers and head noise 0.2.
    """
    q = values.q.detach().amin(0)
    if baseline == "min_v":
        return q - values.v.detach().amin(0)
    return q - values.floor.detach()


def gae(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """Return generalised advantage estimates (N, H) over turns: A_t = sum_l (gamma*lam)^l delta_{t+l}, with
    delta_t = rho_t + gamma*V(o_{t+1}) - V(o_t) (arXiv 1506.02438); V = 0 after the last turn.

    `rewards` and `values` V(o_t) are (N, H). lam=0 is one-step TD, lam=1 the discounted return minus V.
    """
    values, advantages = values.detach(), rewards.clone()
    advantages[:, :-1] += gamma * values[:, 1:]
    advantages -= values
    for turn in reversed(range(rewards.shape[1] - 1)):
        advantages[:, turn] += gamma * lam * advantages[:, turn + 1]
    return advantages


def leave_one_out(rewards: Tensor) -> Tensor:
    """Return A (..., K): each reward minus the mean of the other K - 1 of its group, which is independent of it.

    A group is the hints for one (x, y1), so the baseline conditions on the guidance's input. One group of the whole
    batch is the unbiased form of the batch's mean. Raises UsageError for K < 2.
    """
    count = rewards.shape[-1]
    if count < 2:
        raise UsageError(
            f"hierarchical.guidance.baseline=loo: {count} hint per answer has no others to compare "
            "with; set hierarchical.guidance.hints to 2 or more, or another baseline (value, batch_mean)"
        )
    others = (rewards.sum(-1, keepdim=True) - rewards) / (count - 1)
    return rewards - others


_SMALL = 1e-4
"""Added to a standard deviation before division, so that equal rewards give advantages of 0."""


def group_normalized(rewards: Tensor) -> Tensor:
    """Return A (..., G): each reward minus its group's mean, over their standard deviation: GRPO (arXiv 2402.03300)."""
    spread = rewards.std(-1, keepdim=True)
    return (rewards - rewards.mean(-1, keepdim=True)) / (spread + _SMALL)


def normalized(advantages: Tensor, weights: Tensor) -> Tensor:
    """Return advantages (N,) of weighted mean 0 and standard deviation 1, weights (N,), as in implementations of PPO.
    This biases the gradient slightly: the subtracted mean is a baseline that contains the advantage itself."""
    share = weights / weights.sum()
    centred = advantages - (share * advantages).sum()
    return centred / ((share * centred.square()).sum().sqrt() + _SMALL)


def discounted(advantages: Tensor, turn: Tensor, gamma: float) -> Tensor:
    """Return advantages weighted by gamma^t, t = 0 at the first turn, both (N,). The policy gradient is then exactly
    that of the discounted return; without it (ArCHer, and the default) later turns weigh 1/gamma^t too much."""
    return advantages * gamma ** turn.to(advantages.dtype)
