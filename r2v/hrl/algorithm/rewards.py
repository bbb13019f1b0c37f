"""Rewards: the actor's for its answers, the guidance's for the change after its hint.

A checker gives every answer a score in [0, 1]. The actor earns non-negative shares of the scores, at the turn of the
answer; by default only the last one counts. The hint between two answers earns their difference. The two must not be
mixed: an actor that is paid `r2 - r1` learns to answer wrongly first, which leaves more to improve. In a table of three
first answers, a bonus of twice the improvement already makes the wrong one the best. For the guidance `r1` is an input;
subtracting it changes no expected gradient, only its variance, so the guidance needs a baseline that depends on the
first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from r2v.config import GuidanceConfig
from r2v.errors import InputError, R2VError
from r2v.extensions import load_function
from r2v.hrl.algorithm.samples import HintBatch

_REWARD_KEY = "hierarchical.guidance.reward"


def turn_rewards(scores: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the actor's rewards rho for the checker's scores: (N, H) by its share in each turn's score (H weights), or
    (N,) by the share of each sample's turn (N weights)."""
    return scores * scores.new_tensor(weights)


def hint_rewards(hints: HintBatch, terms: GuidanceConfig) -> Tensor:
    """Return rewards R_g (G, K) of the hints: after - before + judging*[right verdict] - leak*[contains the answer] -
    length*tokens, or the result of the custom function `terms.reward`.

    The difference is not clipped at 0, because a hint that spoils a right answer must cost something. The bonus for a
    verdict is that of arXiv 2510.24320. Raises InputError if the function fails or returns anything but G x K finite
    numbers.
    """
    if terms.reward is not None:
        return _own_rewards(hints, terms.reward)
    reward = hints.after - hints.before
    if terms.judging:
        reward = reward + terms.judging * (hints.says_right == (hints.before >= 0.5))
    if terms.leak:
        reward = reward - terms.leak * hints.leaked
    if terms.length:
        reward = reward - terms.length * hints.tokens
    return reward


def own_reward(spec: str) -> Callable[[HintBatch], Any]:
    """Return the function `package.module:function` of `guidance.reward`. Raises UsageError if it cannot be loaded."""
    return load_function(_REWARD_KEY, spec, (), ("hints",))


def _own_rewards(hints: HintBatch, spec: str) -> Tensor:
    try:
        rewards = torch.as_tensor(own_reward(spec)(hints), dtype=hints.after.dtype, device=hints.after.device)
    except R2VError:
        raise
    except Exception as error:  # a custom reward may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{_REWARD_KEY}={spec}: failed on a batch of hints ({reason}); mend the function") from error
    if rewards.shape != hints.after.shape or not bool(rewards.isfinite().all()):
        raise InputError(
            f"{_REWARD_KEY}={spec}: gave {tuple(rewards.shape)} numbers, not all of them finite or not shaped "
            f"{tuple(hints.after.shape)} (groups, hints); mend the function"
        )
    return rewards
