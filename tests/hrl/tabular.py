"""The table world's texts, for a critic that reads only their numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from r2v.hrl.algorithm.critic import DoubleCritic

SIZE = 28
"""Number of texts: the task, 6 second observations, 3 first and 18 second answers, each with its context."""


def task(like: Tensor) -> Tensor:
    """Return the number of the first observation."""
    return torch.zeros_like(like)


def second(a: Tensor, g: Tensor) -> Tensor:
    """Return the number of the second observation."""
    return 1 + 2 * a + g


def said_first(a: Tensor) -> Tensor:
    return 7 + a


def said_second(a: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return 10 + 3 * (2 * a + g) + b


class OneHot(nn.Module):
    def forward(self, numbers: Tensor) -> Tensor:
        return one_hot(numbers, SIZE).double()


def critic() -> DoubleCritic:
    """Return linear heads on one-hot texts: a table."""
    torch.manual_seed(0)
    return DoubleCritic("cpu", OneHot(), SIZE, hidden=()).double()
