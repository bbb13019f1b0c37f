"""Advantages of an iteration's answers and hints, and the resulting training batches.

An answer's advantage comes from the critic (`v_of_min`, `min_v`), from generalised advantage estimation over the turns
(`gae`), or is its return minus the mean return of the others at the same turn (`score`), or of the others to the same
problem (`rloo`, arXiv 2402.14740), or that over their standard deviation (`grpo`, arXiv 2402.03300). If several
trajectories continue from one answer, one for each hint, their mean counts. A hint's advantage is its reward minus the
mean of the other hints to the same answer (`loo`), of all others (`batch_mean`), or minus a learned value (`value`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from r2v.config import HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm.advantage import critic_advantage, discounted, gae, group_normalized, leave_one_out, normalized
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.algorithm.rewards import hint_rewards, own_reward, turn_rewards
from r2v.hrl.algorithm.samples import AnswerBatch, HintBatch
from r2v.hrl.algorithm.training_batch import TrainingBatch, pad_rows
from r2v.hrl.types import Completion


def check(h: HierarchicalConfig) -> None:
    """Raise UsageError if a mean over other samples would have none, or a custom reward cannot be loaded."""
    if h.guidance.reward is not None:
        own_reward(h.guidance.reward)
    alone = h.episodes * h.group == 1
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


def returns_of(answers: AnswerBatch, h: HierarchicalConfig) -> Tensor:
    """Return (N,): the discounted return from each answer on, averaged over the trajectories that continue from it."""
    rho = turn_rewards(answers.scores, h.rewards)
    return answers.mean_over_trajectories(gae(rho, torch.zeros_like(rho), h.gamma, 1.0))


def actor_batch(
    answers: AnswerBatch,
    values: CriticValues | None,
    reference: Sequence[Sequence[float]],
    baseline: Sequence[Sequence[float]] | None,
    h: HierarchicalConfig,
) -> TrainingBatch:
    """Return the actor's training batch. `values`: the critic's for these answers; None without a critic."""
    advantage = _advantage(answers, values, h)
    if h.discount_weight:
        advantage = discounted(advantage, answers.turn, h.gamma)
    if h.normalize_advantages:
        advantage = normalized(advantage, answers.weight)
    beta = torch.tensor([h.kl.first, h.kl.later], dtype=torch.float64)[(answers.turn > 0).long()]
    return TrainingBatch(
        advantage=advantage,
        beta=beta,
        behaviour=pad_rows([completion.logprobs for completion in answers.completions]),
        reference=pad_rows(reference),
        baseline=None if baseline is None else pad_rows(baseline),
        weight=answers.weight,
        drawn=_drawn(answers.completions),
    )


def _drawn(completions: Sequence[Completion]) -> Tensor | None:
    """Return the engine's log-probabilities (N, T); None if the policy itself drew every token."""
    if not any(completion.engine_logprobs for completion in completions):
        return None
    return pad_rows([completion.engine_logprobs or completion.logprobs for completion in completions])


def _advantage(answers: AnswerBatch, values: CriticValues | None, h: HierarchicalConfig) -> Tensor:
    if values is None:
        return _compared(answers, returns_of(answers, h), h)
    if h.advantage == "gae":
        rho = turn_rewards(answers.scores, h.rewards)
        expected = values.v.mean(0)[answers.trajectories]
        return answers.mean_over_trajectories(gae(rho, expected, h.gamma, h.gae_lambda))
    return critic_advantage(values, "min_v" if h.advantage == "min_v" else "v_of_min")


def _compared(answers: AnswerBatch, returns: Tensor, h: HierarchicalConfig) -> Tensor:
    """Return (N,): returns relative to those of the same turn (`score`), or also of the same problem (`rloo`,
    `grpo`)."""
    group = torch.zeros_like(answers.group) if h.advantage == "score" else answers.group
    advantages = torch.zeros_like(returns)
    for turn in range(h.turns):
        for number in sorted(set(group.tolist())):
            rows = (answers.turn == turn) & (group == number)
            compare = group_normalized if h.advantage == "grpo" else leave_one_out
            advantages[rows] = compare(returns[rows])
    return advantages


def guidance_batch(
    hints: HintBatch, expected: Tensor | None, reference: Sequence[Sequence[float]], h: HierarchicalConfig
) -> TrainingBatch:
    """Return the guidance's training batch. `expected` (G*K,): learned values of these hints; None without a value
    model."""
    rewards = hint_rewards(hints, h.guidance)
    if expected is not None:
        advantage = rewards.reshape(-1) - expected
    elif h.guidance.baseline == "loo":
        advantage = leave_one_out(rewards).reshape(-1)
    else:
        advantage = leave_one_out(rewards.reshape(-1))
    if h.normalize_advantages:
        advantage = normalized(advantage, torch.ones_like(advantage))
    return TrainingBatch(
        advantage=advantage,
        beta=torch.full_like(advantage, h.kl.guidance),
        behaviour=pad_rows([completion.logprobs for completion in hints.completions]),
        reference=pad_rows(reference),
        drawn=_drawn(hints.completions),
    )
