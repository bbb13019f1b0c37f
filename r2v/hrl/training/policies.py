"""Learners of both policies: training batches for both, then steps of each by its own optimizer.

No gradient of one reaches the other: their weights are disjoint, a shared base is frozen, and both training batches
are computed before either policy is updated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from r2v.config import HierarchicalConfig
from r2v.hrl.algorithm import compute_advantages
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.algorithm.rewards import hint_rewards
from r2v.hrl.algorithm.training_batch import (
    POLICY_STATISTICS,
    TokenBaseline,
    TrainingBatch,
    batch_logprobs,
    policy_loss_fn,
    sorted_by_length,
)
from r2v.hrl.models.encoders import padded_text
from r2v.hrl.models.roles import GeneratingRole, Roles
from r2v.hrl.parallel import ranks
from r2v.hrl.parallel.micro_batch import MicroBatchSizes
from r2v.hrl.parallel.sharded_tensors import TakeFn, full_cpu_copy
from r2v.hrl.rollout.episode import GuidedEpisode
from r2v.hrl.rollout.transitions import answers_of, hints_of
from r2v.hrl.training import metrics
from r2v.hrl.training.critic_trainer import CriticTrainer
from r2v.hrl.training.optimizer_step import Network, StepResult, optimizer_step
from r2v.hrl.types import Completion
from r2v.memory.on_device.retry_on_oom import retry_on_oom


class Policies:
    """Learners of the policies in `roles`."""

    def __init__(self, roles: Roles, h: HierarchicalConfig, sizes: MicroBatchSizes) -> None:
        self.roles, self.h, self.sizes = roles, h, sizes
        self.networks = {"actor": self._network("actor", h.lr, "hierarchical.lr")}
        if h.guidance.enabled:
            self.networks["guidance"] = self._network("guidance", h.guidance_lr, "hierarchical.guidance_lr")
        if roles.value is not None:
            self.networks["value"] = self._network("value", h.critic.lr, "hierarchical.critic.lr")
        self.baseline: TokenBaseline | None = None
        if h.token_baseline:
            with roles.using("actor") as model:
                self.baseline = TokenBaseline(model.config.hidden_size, next(iter(model.parameters())))
            self.networks["baseline"] = Network(
                "token baseline",
                self.baseline.parameters(),
                lr=h.critic.lr,
                clip=h.grad_clip,
                micro_batch_size=sizes.of("actor"),
                setting="hierarchical.critic.lr",
            )

    def _network(self, role: Any, lr: float, setting: str) -> Network:
        return Network(
            role,
            self.roles.parameters(role),
            lr=lr,
            clip=self.h.grad_clip,
            micro_batch_size=self.sizes.of(role),
            setting=setting,
            engine=self.roles.engines.get(role),
            fused=self.h.optimizer == "adamw_fused",
        )

    def set_rate(self, share: float) -> None:
        """Set the learning rates of actor and guidance to this share of the configured ones."""
        for role in {"actor", "guidance"} & set(self.networks):
            self.networks[role].set_rate(share)

    def training_batches(
        self, episodes: Sequence[GuidedEpisode], critic_trainer: CriticTrainer | None
    ) -> tuple[dict[str, TrainingBatch], dict[str, float]]:
        """Return the training batches of both policies by role, the same on every rank, and their metrics."""
        answers = answers_of(episodes)
        values = None if critic_trainer is None else self._values(critic_trainer, answers.completions)
        reference, baselines = self._reference_logprobs(answers.completions), self._baselines(answers.completions)
        batches = {"actor": compute_advantages.actor_batch(answers, values, reference, baselines, self.h)}
        measured = metrics.of_training_batch("actor", batches["actor"])
        if values is not None and critic_trainer is not None:
            measured |= metrics.of_values(values, compute_advantages.returns_of(answers, self.h))
            measured["critic/gap"] = critic_trainer.target_distance()
        if self.h.guidance.enabled:
            hints = hints_of(episodes)
            expected, reference = self._expected(hints.completions), self._reference_logprobs(hints.completions)
            batches["guidance"] = compute_advantages.guidance_batch(hints, expected, reference, self.h)
            measured |= metrics.of_training_batch("guidance", batches["guidance"])
        return batches, measured

    def _values(self, critic_trainer: CriticTrainer, completions: Sequence[Completion]) -> CriticValues:
        share = ranks.local_share(completions)
        rows: list[tuple[float, ...]] = []
        if share:
            values = critic_trainer.values_of_answers([c.prompt for c in share], [c.tokens for c in share])
            rows = list(zip(*values.q.tolist(), *values.v.tolist(), values.floor.tolist(), strict=True))
        table = torch.tensor(ranks.all_gather(rows), dtype=torch.float64).T
        return CriticValues(q=table[:2], v=table[2:4], floor=table[4])

    def _reference_logprobs(self, completions: Sequence[Completion]) -> list[list[float]]:
        share, device = ranks.local_share(completions), self.roles.device("reference")
        with self.roles.using("reference") as model:
            done = retry_on_oom(
                lambda size: batch_logprobs(model, device, share, size), self.sizes.of("reference"), phase="reference"
            )
        return ranks.all_gather(done.result)

    def _baselines(self, completions: Sequence[Completion]) -> list[list[float]] | None:
        if self.baseline is None:
            return None
        share, device = ranks.local_share(completions), self.roles.device("actor")
        with self.roles.using("actor") as model:
            return ranks.all_gather(self.baseline.of(model, device, share, self.sizes.of("actor")))

    @torch.no_grad()
    def _expected(self, completions: Sequence[Completion]) -> Tensor | None:
        """Return (N,): the value model's prediction of each hint's reward; None without a value model."""
        if self.roles.value is None:
            return None
        share, predicted = ranks.local_share(completions), list[float]()
        size = self.sizes.of("value")
        for start in range(0, len(share), size):
            some = share[start : start + size]
            texts = self.roles.encode_for_critic([completion.prompt for completion in some])
            predicted += self.roles.value(*padded_text(texts, self.roles.device("value"))).tolist()
        return torch.tensor(ranks.all_gather(predicted), dtype=torch.float64)

    def update_actor(self, episodes: Sequence[GuidedEpisode], batches: Mapping[str, TrainingBatch]) -> dict[str, float]:
        """Update the actor, and its token baseline as often; return their metrics."""
        completions = answers_of(episodes).completions
        measured = self._baseline_steps(completions, batches["actor"])
        return measured | metrics.of_policy("actor", self._steps("actor", completions, batches["actor"]))

    def update_guidance(
        self, episodes: Sequence[GuidedEpisode], batches: Mapping[str, TrainingBatch]
    ) -> dict[str, float]:
        """Update the guidance, and its value model as often; return their metrics."""
        hints = hints_of(episodes)
        measured = metrics.of_policy("guidance", self._steps("guidance", hints.completions, batches["guidance"]))
        if self.roles.value is None:
            return measured
        rewards = hint_rewards(hints, self.h.guidance).reshape(-1)
        return measured | metrics.of_steps("value", self._value_steps(hints.completions, rewards))

    def _steps(self, role: GeneratingRole, completions: Sequence[Completion], batch: TrainingBatch) -> list[StepResult]:
        rows, network = _local_rows(completions), self.networks[role]
        with self.roles.using(role) as model:
            loss_fn = policy_loss_fn(model, self.roles.device(role), completions, batch, self.h)
            wrapped = self.roles.wrap_loss(role, loss_fn)
            return [optimizer_step(network, rows, wrapped, POLICY_STATISTICS) for _ in range(self.h.updates)]

    def _baseline_steps(self, completions: Sequence[Completion], batch: TrainingBatch) -> dict[str, float]:
        if self.baseline is None:
            return {}
        rows, network = _local_rows(completions), self.networks["baseline"]
        with self.roles.gathered("actor"), self.roles.using("actor") as model:
            device = self.roles.device("actor")
            loss_fn = self.baseline.loss_fn(model, device, completions, batch.advantage, self.h.per)
            steps = [optimizer_step(network, rows, loss_fn) for _ in range(self.h.updates)]
        return metrics.of_steps("baseline", steps)

    def _value_steps(self, completions: Sequence[Completion], rewards: Tensor) -> list[StepResult]:
        value, device = self.roles.value, self.roles.device("value")
        assert value is not None
        ids, lengths = self.roles.encode_for_critic([completion.prompt for completion in completions])

        def loss_fn(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
            index = list(rows)
            predicted = value(*padded_text((ids[index], lengths[index]), device))
            loss = (predicted - rewards[index].to(predicted)).square().sum() / len(completions)
            return loss, loss.new_zeros(0)

        rows = _local_rows(completions)
        return [optimizer_step(self.networks["value"], rows, loss_fn) for _ in range(self.h.updates)]

    def plain(self, take: TakeFn = full_cpu_copy) -> dict[str, Any]:
        """Return optimizers and token baseline for a checkpoint, each tensor converted by `take`. All ranks must call
        if models are sharded."""
        return {
            "optimizers": {name: network.state(take) for name, network in self.networks.items()},
            "baseline": {} if self.baseline is None else self.baseline.state_dict(),
        }

    def load(self, plain: Mapping[str, Any]) -> None:
        """Restore a state of `plain`."""
        for name, network in self.networks.items():
            network.load(plain["optimizers"][name])
        if self.baseline is not None:
            self.baseline.load_state_dict(plain["baseline"])


def _local_rows(completions: Sequence[Completion]) -> list[int]:
    """Return this rank's rows, sorted by length."""
    return ranks.local_share(sorted_by_length(completions, range(len(completions))))
