"""A world of two answers and a hint, small enough to be written down.

First answer a in 3, hint g in 2, second answer b in 3. The first is right where a = 2. After a < 2 the second is right
where b = (a + g) mod 3: a good player reads the hint. After a = 2 it scores 0.2, and 1 after hint 0 where b = 2. All
expectations are sums over 18 paths, differentiable in the policies: the oracle of `r2v.hrl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ANSWERS, HINTS = 3, 2
GAMMA = 0.9


def exact_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """Return KL(pi || ref) (...) of logits (..., V), in nats; exactly 0.0 for equal ones."""
    logp, logref = logits.log_softmax(-1), reference.log_softmax(-1)
    return (logp.exp() * (logp - logref)).sum(-1)


def first_score() -> Tensor:
    """Return r1 (A,)."""
    return torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)


def second_score() -> Tensor:
    """Return r2 (A, G, B)."""
    score = torch.zeros(ANSWERS, HINTS, ANSWERS, dtype=torch.float64)
    for answer in range(2):
        for hint in range(HINTS):
            score[answer, hint, (answer + hint) % ANSWERS] = 1.0
    score[2] = 0.2
    score[2, 0, 2] = 1.0
    return score


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Probabilities of the first answer (A,), the hint (A, G) and the second answer (A, G, B)."""

    first: Tensor
    hint: Tensor
    second: Tensor

    @classmethod
    def of(cls, first: Tensor, hint: Tensor, second: Tensor) -> Policies:
        """Return the policies of these logits."""
        return cls(first=first.softmax(-1), hint=hint.softmax(-1), second=second.softmax(-1))

    def trajectories(self) -> Tensor:
        """Return P(a, g, b), shape (A, G, B)."""
        return self.first[:, None, None] * self.hint[:, :, None] * self.second


class Worth(NamedTuple):
    """Exact values of both turns."""

    q1: Tensor
    """Shape (A,)."""
    v1: Tensor
    """Shape ()."""
    q2: Tensor
    """Shape (A, G, B)."""
    v2: Tensor
    """Shape (A, G)."""


def worth(policies: Policies, rewards: tuple[Tensor, Tensor], gamma: float = GAMMA) -> Worth:
    """Return Q and V of both turns for rewards rho1 (A,) and rho2 (A, G, B)."""
    rho1, q2 = rewards
    v2 = (policies.second * q2).sum(-1)
    q1 = rho1 + gamma * (policies.hint * v2).sum(-1)
    return Worth(q1=q1, v1=(policies.first * q1).sum(), q2=q2, v2=v2)


def best(rewards: tuple[Tensor, Tensor], gamma: float = GAMMA) -> Tensor:
    """Return Q of the first answer (A,) with the best hint and second answer for the actor."""
    rho1, rho2 = rewards
    return rho1 + gamma * rho2.amax((1, 2))
