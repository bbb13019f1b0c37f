"""Shared types of hierarchical training: token ids, completions and loss functions.

They import nothing of the package, so that its folders share them without importing each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

TokenIds = tuple[int, ...]
"""A text as token ids of the policy."""

LossFn = Callable[[Sequence[int]], tuple[Tensor, Tensor]]
"""Row indices -> their share in the loss of an update, and (M,) statistics to be summed over all rows.

The loss is already divided by the denominator of the whole update, so shares add up. Row 0 always exists: a rank
without rows passes it and multiplies its loss by 0.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Tokens that a policy generated after a prompt, and the policy's version."""

    prompt: TokenIds
    tokens: TokenIds
    """End token included, if one was drawn."""
    logprobs: tuple[float, ...]
    """Of each token, in nats, at temperature 1; empty if not requested."""
    ended: bool
    """False: cut off at the token limit."""
    version: int
    text: str
    """Without special tokens: for people, checkers and later prompts."""
    engine_logprobs: tuple[float, ...] = ()
    """Of each token, by the serving engine that drew it; empty if the trained model drew it."""
