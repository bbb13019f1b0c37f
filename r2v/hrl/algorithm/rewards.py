"""Rewards: the actor's for its answers, the guidance's for what its hint changed.

A checker gives every answer a score in [0, 1]. The actor earns non-negative shares of the scores, at the turn where
the answer was given: by default the last answer alone. The hint between two answers earns their difference. The two
must not be mixed. An actor that is paid `r2 - r1` learns to answer wrongly first, for then there is more to improve:
in a table of three first answers, a bonus of twice the improvement already makes the wrong one the best. For the
guidance `r1` is given; subtracting it changes no gradient in expectation, only its variance, so the guidance needs a
baseline that knows the first answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from r2v.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TurnRewards:
    """The actor's share in the score of each of its H >= 1 answers, first to last.

    `(0, ..., 0, 1)` pays the last answer alone, `(w, ..., w, 1)` the others too.
    """

    weights: tuple[float, ...] = (0.0, 1.0)

    def __post_init__(self) -> None:
        shown = f"hierarchical.rewards={list(self.weights)}"
        if not all(math.isfinite(weight) for weight in self.weights):
            raise UsageError(f"{shown}: weights are finite numbers, one per turn; e.g. [0, 1]")
        if any(weight < 0 for weight in self.weights):
            turn = next(turn for turn, weight in enumerate(self.weights, start=1) if weight < 0)
            raise UsageError(
                f"{shown}: answer {turn} would be paid for being wrong, and the actor would learn to give "
                "a wrong one and mend it afterwards; no weight may be below 0. Improvement is what the "
                "guidance is paid for"
            )
        if not self.weights or self.weights[-1] == 0:
            raise UsageError(f"{shown}: the last answer must be paid for; one weight per turn, e.g. [0, 1]")

    def of(self, scores: Tensor) -> Tensor:
        """Rewards rho (N, H) of the checker's scores (N, H)."""
        if scores.shape[-1] != len(self.weights):
            raise UsageError(
                f"hierarchical.rewards={list(self.weights)}: {scores.shape[-1]} turns were played; give "
                "one weight per turn"
            )
        return scores * scores.new_tensor(self.weights)


@dataclass(frozen=True, kw_only=True)
class GuidanceReward:
    """The hint's reward: R_g = after - before + judging*[right verdict] - leak*[contains the answer] - length*tokens.

    `before` and `after` are the scores of the answers on either side of the hint. The difference is never clipped at
    0: a hint that spoils a right answer must cost something, and the gradient of max(0, after - before) is another.
    """

    judging: float = 0.0
    """Bonus for a verdict on the answer before that agrees with the checker (arXiv 2510.24320)."""
    leak: float = 0.0
    """Penalty for a hint that contains the reference answer."""
    length: float = 0.0
    """Penalty per token of the hint."""

    def __post_init__(self) -> None:
        for name in ("judging", "leak", "length"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(
                    f"hierarchical.guidance.{name}={value}: must be a finite number >= 0, what is taken "
                    "off too; 0 leaves the term out"
                )

    def of(
        self,
        before: Tensor,
        after: Tensor,
        *,
        says_right: Tensor | None = None,
        leaked: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """R_g, shaped as `before` and `after`. `says_right` and `leaked` (bool) and `tokens` are as in
        `HintBatch`. Raises UsageError where a term has a weight and nothing to count."""
        reward = after - before
        if self.judging:
            reward = reward + self.judging * (_required("judging", says_right) == (before >= 0.5))
        if self.leak:
            reward = reward - self.leak * _required("leak", leaked)
        if self.length:
            reward = reward - self.length * _required("length", tokens)
        return reward


def _required(name: str, counts: Tensor | None) -> Tensor:
    if counts is None:
        raise UsageError(f"hierarchical.guidance.{name} is above 0, but nothing says what it counts; set it to 0")
    return counts
