"""Losses of both levels: the critic's over utterances, the policies' over tokens.

Every sum is divided by a denominator that is passed in: the utterances or tokens of the whole update, over all
micro-batches and ranks. Shares therefore add up, and the split of a batch changes no gradient. With a mean per rank,
ranks with fewer tokens would weigh as much as the others. `mask` marks the generated tokens; other values, even NaN or
infinite ones, have no effect.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from r2v.hrl.algorithm.critic import CriticValues

Per = Literal["sequence", "token"]


def token_weights(advantage: Tensor, baseline: Tensor | None = None, penalty: Tensor | None = None) -> Tensor:
    """Return c (N, T) = A - b - penalty, or (N, 1) without terms per token. No gradient flows through it.

    `advantage` (N,), the token `baseline` (N, T), and the `penalty` (N, T) of KL by reward, beta*(log pi - log ref). A
    token is charged its own penalty, not that of later tokens.
    """
    weights = advantage.detach()[:, None]
    for term in (baseline, penalty):
        if term is not None:
            weights = weights - term.detach()
    return weights


def policy_loss(logp: Tensor, weights: Tensor, mask: Tensor, denominator: Tensor | float) -> Tensor:
    """Return the loss of REINFORCE: -(1/Z) sum m * c * log pi(y_k | o, y_<k). `logp` and `mask` (N, T), `weights` (N,
    T) or (N, 1); the tokens are draws of the current policy."""
    return -(_marked(logp, mask) * _marked(weights.detach(), mask)).sum() / denominator


def clipped_loss(
    logp: Tensor, behaviour: Tensor, weights: Tensor, mask: Tensor, denominator: Tensor | float, clip: float = 0.2
) -> Tensor:
    """Return the loss of PPO (arXiv 1707.06347): -(1/Z) sum m * min(r*c, clamp(r, 1-clip, 1+clip)*c), with
    r = exp(log pi - log behaviour).

    Shapes as in `policy_loss`; `behaviour` (N, T): log-probabilities of the tokens when they were drawn. At r = 1 its
    gradient is that of `policy_loss`.
    """
    weights = _marked(weights.detach(), mask)
    ratio = (_marked(logp, mask) - _marked(behaviour.detach(), mask)).exp()
    return -torch.minimum(ratio * weights, ratio.clamp(1 - clip, 1 + clip) * weights).sum() / denominator


def importance(logp: Tensor, drawn: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return importance ratios (N, T) = min(pi / q, cap) of marked tokens, 1 elsewhere, which turn a mean over draws of
    q, of log-probability `drawn`, into one over draws of pi, token by token. The cap bounds the variance at the price
    of a bias. No gradient."""
    return (_marked(logp.detach(), mask) - _marked(drawn.detach(), mask)).exp().clamp(max=cap)


def baseline_loss(predicted: Tensor, advantage: Tensor, mask: Tensor, denominator: Tensor | float) -> Tensor:
    """Return the squared errors of the token baseline b (N, T) from the utterance's advantage (N,) on marked tokens."""
    target = _marked(advantage.detach()[:, None], mask)
    return (_marked(predicted, mask) - target).square().sum() / denominator


def critic_targets(
    rewards: Tensor, done: Tensor, next_v: Tensor, drawn_q: Tensor, gamma: float, pessimistic: bool = False
) -> CriticValues:
    """Return the critic's TD targets for N transitions, from the target network's values:

        Q_i <- rho + gamma * (1 - d) * V_i(o')        V_i <- mean_k Q_i(o, y_k)        floor <- mean_k min_i Q_i(o, y_k)

    `rewards` and `done` (N,), `next_v` (2, N), ignored where d = 1, `drawn_q` (2, N, K) of K actions of the policy
    in o. `pessimistic`: both heads use the smaller of the two next values. No gradient.
    """
    next_v = next_v.detach()
    if pessimistic:
        next_v = next_v.amin(0, keepdim=True).expand_as(next_v)
    drawn_q = drawn_q.detach()
    return CriticValues(
        q=rewards + gamma * torch.where(done, 0.0, next_v), v=drawn_q.mean(-1), floor=drawn_q.amin(0).mean(-1)
    )


def critic_loss(predicted: CriticValues, targets: CriticValues, denominator: Tensor | float) -> Tensor:
    """Return squared errors of all five heads, divided by `denominator`, the transitions of the whole batch."""
    errors = [
        (value - target.detach()).square().sum()
        for value, target in (
            (predicted.q, targets.q),
            (predicted.v, targets.v),
            (predicted.floor, targets.floor),
        )
    ]
    return torch.stack(errors).sum() / denominator


def _marked(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values where `mask` is set, 0 elsewhere."""
    # Inputs are masked, not the product: 0 * NaN is NaN, and its gradient would be too.
    return torch.where(mask, values, 0.0)
