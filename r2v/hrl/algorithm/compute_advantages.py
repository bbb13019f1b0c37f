"""By how much each utterance of an iteration was better than expected: lessons, before anything is learned from them.

The actor's advantage comes from the critic (`v_of_min`, `min_v`), from what followed each answer (`gae`), or from that
alone, less the mean of the others at the same turn (`score`). Several ways may lead on from one answer, one for each
hint; what followed is then their mean. A hint's comes from its pay, less that of the others to the same answer (`loo`),
of all others (`batch_mean`), or less what a learned function expects (`value`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from r2v.config import HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm.advantage import discounted, gae, leave_one_out, of_heads
from r2v.hrl.algorithm.critic import Values
from r2v.hrl.algorithm.rewards import GuidanceReward, TurnRewards
from r2v.hrl.algorithm.training_batch import Lesson, padded
from r2v.hrl.rollout.transitions import Answers, Hints


def check(h: HierarchicalConfig) -> None:
    """Raises UsageError where a mean over others has no others."""
    alone = h.episodes == 1
    if alone and h.advantage == "score":
        raise UsageError(
            "hierarchical.advantage=score: compares episodes with each other, but there is one an "
            "iteration; set hierarchical.episodes=2 or more, or another advantage"
        )
    if alone and h.guidance.enabled and h.guidance.baseline == "batch_mean" and h.guidance.hints * (h.turns - 1) == 1:
        raise UsageError(
            "hierarchical.guidance.baseline=batch_mean: compares hints with each other, but "
            "hierarchical.episodes=1 has a single one; set 2 or more"
        )


def returns_of(answers: Answers, h: HierarchicalConfig) -> Tensor:
    """(N,): what the actor was paid from each answer on, discounted; the mean over the ways on from it."""
    rho = TurnRewards(weights=tuple(h.rewards)).of(answers.scores)
    everywhere = torch.ones_like(rho, dtype=torch.bool)
    return answers.mean_over_paths(gae(rho, torch.zeros_like(rho), everywhere, h.gamma, 1.0))


def actor_lesson(
    answers: Answers,
    values: Values | None,
    reference: Sequence[Sequence[float]],
    baseline: Sequence[Sequence[float]] | None,
    h: HierarchicalConfig,
) -> Lesson:
    """What the actor learns of its answers; `values` of them where there is a critic."""
    advantage = _advantage(answers, values, h)
    if h.discount_weight:
        advantage = discounted(advantage, answers.turn, h.gamma)
    beta = torch.tensor([h.kl.first, h.kl.later], dtype=torch.float64)[(answers.turn > 0).long()]
    return Lesson(
        advantage=advantage,
        beta=beta,
        behaviour=padded([one.logprobs for one in answers.said]),
        reference=padded(reference),
        baseline=None if baseline is None else padded(baseline),
    )


def _advantage(answers: Answers, values: Values | None, h: HierarchicalConfig) -> Tensor:
    if values is None:
        returns = returns_of(answers, h)
        found = torch.zeros_like(returns)
        for turn in range(h.turns):
            here = answers.turn == turn
            found[here] = leave_one_out(returns[here])
        return found
    if h.advantage == "gae":
        rho = TurnRewards(weights=tuple(h.rewards)).of(answers.scores)
        expected = values.v.mean(0)[answers.paths]
        everywhere = torch.ones_like(rho, dtype=torch.bool)
        return answers.mean_over_paths(gae(rho, expected, everywhere, h.gamma, h.gae_lambda))
    return of_heads(values, "min_v" if h.advantage == "min_v" else "v_of_min")


def pay_of(hints: Hints, h: HierarchicalConfig) -> Tensor:
    """R_g (G, K)."""
    paid = GuidanceReward(judging=h.guidance.judging, leak=h.guidance.leak, length=h.guidance.length)
    return paid.of(hints.before, hints.after, judged=hints.judged, leaked=hints.leaked, tokens=hints.tokens)


def guidance_lesson(
    hints: Hints, expected: Tensor | None, reference: Sequence[Sequence[float]], h: HierarchicalConfig
) -> Lesson:
    """What the guidance learns of its hints; `expected` (G*K,) of them where a function for that is learned."""
    pay = pay_of(hints, h)
    if expected is not None:
        advantage = pay.reshape(-1) - expected
    elif h.guidance.baseline == "loo":
        advantage = leave_one_out(pay).reshape(-1)
    else:
        advantage = leave_one_out(pay.reshape(-1))
    return Lesson(
        advantage=advantage,
        beta=torch.full_like(advantage, h.kl.guidance),
        behaviour=padded([one.logprobs for one in hints.said]),
        reference=padded(reference),
    )
