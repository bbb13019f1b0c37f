"""Advantages: by how much an answer or a hint was better than expected.

Of answers by the critic (`critic_advantage`) or by the rewards that followed (`gae`); of hints by the other hints to
the same answer (`leave_one_out`). No gradient flows through an advantage.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from r2v.errors import UsageError
from r2v.hrl.algorithm.critic import CriticValues

Baseline = Literal["v_of_min", "min_v"]


def critic_advantage(values: CriticValues, baseline: Baseline = "v_of_min") -> Tensor:
    """A (N,) = min_i Q_i(o, y) - Vhat(o).

    `v_of_min` takes the head that was fit to E_y[min_i Q_i]: sum_y pi(y) A(y) = 0. `min_v` is ArCHer's
    min_i V_i(o): as E[min] <= min E, it is biased below 0, by 0.033 for two answers and head noise 0.2.
    """
    q = values.q.detach().amin(0)
    if baseline == "min_v":
        return q - values.v.detach().amin(0)
    return q - values.floor.detach()


def gae(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation (N, H) over turns: A_t = sum_l (gamma*lam)^l delta_{t+l}, with delta_t = rho_t +
    gamma*V(o_{t+1}) - V(o_t) (arXiv 1506.02438); after the last turn V = 0.

    `rewards` and `values` V(o_t) are (N, H). lam=0 is one-step TD, lam=1 the discounted return less V.
    """
    values, advantages = values.detach(), rewards.clone()
    advantages[:, :-1] += gamma * values[:, 1:]
    advantages -= values
    for turn in reversed(range(rewards.shape[1] - 1)):
        advantages[:, turn] += gamma * lam * advantages[:, turn + 1]
    return advantages


def leave_one_out(rewards: Tensor) -> Tensor:
    """A (..., K): each reward less the mean of the other K - 1 of its group, which does not depend on it.

    A group is the hints for one (x, y1): the baseline then conditions on what the guidance was given. One group of
    the whole batch is the unbiased form of the batch's mean. Raises UsageError for K < 2.
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
"""Added to a standard deviation that divides: answers that all earn the same teach nothing."""


def group_normalized(rewards: Tensor) -> Tensor:
    """A (..., G): each reward less the mean of its group, over their standard deviation: GRPO (arXiv 2402.03300)."""
    spread = rewards.std(-1, keepdim=True)
    return (rewards - rewards.mean(-1, keepdim=True)) / (spread + _SMALL)


def normalized(advantages: Tensor, weights: Tensor) -> Tensor:
    """Advantages (N,) brought to mean 0 and standard deviation 1, each counted by its weight (N,), as PPO's
    implementations do. The batch then decides the scale, and its mean is a baseline that the advantages are part of."""
    share = weights / weights.sum()
    centred = advantages - (share * advantages).sum()
    return centred / ((share * centred.square()).sum().sqrt() + _SMALL)


def discounted(advantages: Tensor, turn: Tensor, gamma: float) -> Tensor:
    """Advantages weighted by gamma^t, t = 0 at the first turn, both (N,): with it the policy gradient is that of the
    discounted return, exactly; without it (ArCHer, and the default) later turns weigh 1/gamma^t too much."""
    return advantages * gamma ** turn.to(advantages.dtype)
