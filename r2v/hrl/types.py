"""Types that every room of hierarchical training shares: token ids, completions, and the loss of some rows.

They import nothing of the package, so that a room may speak of another's data without importing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

TokenIds = tuple[int, ...]
"""A text as token ids of the policy."""

LossFn = Callable[[Sequence[int]], tuple[Tensor, Tensor]]
"""The share of some rows (by index) in the loss of an update, and (M,) statistics that are summed over all rows.

The loss is already divided by the denominator of the whole update, so shares add up. Row 0 always exists: a rank
without rows of its own passes it and multiplies its loss by 0.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The tokens that a policy generated after a prompt, and the version of the policy that did."""

    prompt: TokenIds
    tokens: TokenIds
    """With the end token, where one was drawn."""
    logprobs: tuple[float, ...]
    """Of each token, in nats, at temperature 1; empty where none were asked for."""
    ended: bool
    """False: cut off at the largest number of tokens."""
    version: int
    text: str
    """Without special tokens: for people, checkers and later prompts."""
    engine_logprobs: tuple[float, ...] = ()
    """Of each token, by the engine that drew it, where that is not the model that is trained; empty where it is."""
