"""The table world's texts for a critic that reads nothing but their numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from r2v.hrl.algorithm.critic import DoubleCritic

SIZE = 28
"""Texts: the task, 6 second observations, 3 first and 18 second answers, each with what it was said upon."""


def task(like: Tensor) -> Tensor:
    """The first observation."""
    return torch.zeros_like(like)


def second(a: Tensor, g: Tensor) -> Tensor:
    """The second observation."""
    return 1 + 2 * a + g


def said_first(a: Tensor) -> Tensor:
    return 7 + a


def said_second(a: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return 10 + 3 * (2 * a + g) + b


class OneHot(nn.Module):
    def forward(self, numbers: Tensor) -> Tensor:
        return one_hot(numbers, SIZE).double()


def critic() -> DoubleCritic:
    """Linear heads on one-hot texts: a table."""
    torch.manual_seed(0)
    return DoubleCritic("cpu", OneHot(), SIZE, hidden=()).double()
