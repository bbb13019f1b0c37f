"""Rewards: the actor's for its answers, the guidance's for what its hint changed.

A checker gives every answer a score in [0, 1]. The actor earns non-negative shares of the scores, at the turn where
the answer was given: by default the last answer alone. The hint between two answers earns their difference. The two
must not be mixed. An actor that is paid `r2 - r1` learns to answer wrongly first, for then there is more to improve:
in a table of three first answers, a bonus of twice the improvement already makes the wrong one the best. For the
guidance `r1` is given; subtracting it changes no gradient in expectation, only its variance, so the guidance needs a
baseline that knows the first answer.
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
    """Rewards rho of the actor for the checker's scores: (N, H) by its share in each turn's score (H weights), or (N,)
    by the share of each one's turn (N weights)."""
    return scores * scores.new_tensor(weights)


def hint_rewards(hints: HintBatch, terms: GuidanceConfig) -> Tensor:
    """Rewards R_g (G, K) of the hints: after - before + judging*[right verdict] - leak*[contains the answer] -
    length*tokens, or what `terms.reward`, a function of one's own, gives.

    The difference is never clipped at 0: a hint that spoils a right answer must cost something, and the gradient of
    max(0, after - before) is another. The bonus for a verdict is arXiv 2510.24320's. Raises InputError where the
    function fails or gives anything but G x K finite numbers.
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
    """The function `package.module:function` that `guidance.reward` names. Raises UsageError where there is none."""
    return load_function(_REWARD_KEY, spec, (), ("hints",))


def _own_rewards(hints: HintBatch, spec: str) -> Tensor:
    try:
        rewards = torch.as_tensor(own_reward(spec)(hints), dtype=hints.after.dtype, device=hints.after.device)
    except R2VError:
        raise
    except Exception as error:  # a reward of somebody else's may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{_REWARD_KEY}={spec}: failed on a batch of hints ({reason}); mend the function") from error
    if rewards.shape != hints.after.shape or not bool(rewards.isfinite().all()):
        raise InputError(
            f"{_REWARD_KEY}={spec}: gave {tuple(rewards.shape)} numbers, not all of them finite or not shaped "
            f"{tuple(hints.after.shape)} (groups, hints); mend the function"
        )
    return rewards
