"""Training of the critic: its replay buffer, TD targets from the target network, optimizer steps and Polyak updates.

A row of the replay buffer holds a transition's observation, action and next observation in the critic's tokens, and
the prompt in the policy's tokens if actions are resampled for the V targets. A batch is drawn once for all ranks, and
each trains on its slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from r2v import distributed
from r2v.config import HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm import losses
from r2v.hrl.algorithm.critic import CriticValues, DoubleCritic, Text
from r2v.hrl.models.encoders import padded_text
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.rollout.resampled_actions import ActionResampler
from r2v.hrl.rollout.transitions import Transitions
from r2v.hrl.training import metrics
from r2v.hrl.training.optimizer_step import Network, StepResult, optimizer_step
from r2v.hrl.training.replay_buffer import ReplayBuffer, usable
from r2v.hrl.types import LossFn, TokenIds

PaddedTexts = tuple[Tensor, Tensor]
"""N texts in the replay buffer's form: ids (N, W), lengths (N,)."""
SampleActions = Callable[[Sequence[TokenIds]], Sequence[Sequence[TokenIds]]]
"""Prompts -> a few actions of the current actor for each."""

_PART = 1 << 16
"""Number of weights compared with the target network's at a time."""
_TEXTS = ("observation", "action", "next_observation")


class CriticTrainer:
    """Learner of the critic. `prompt_tokens`: longest prompt of its replay buffer."""

    def __init__(
        self,
        roles: Roles,
        h: HierarchicalConfig,
        seed: int,
        micro_batch_size: int,
        prompt_tokens: int,
        rows: RolloutRows | None = None,
    ) -> None:
        if h.critic.batch_size < distributed.ranks():
            raise UsageError(
                f"hierarchical.critic.batch_size={h.critic.batch_size}: {distributed.ranks()} ranks share "
                "it; set as many or more, or fewer training.ranks"
            )
        self.roles, self.h, self.seed = roles, h, seed
        self.micro_batch_size, self.prompt_tokens = micro_batch_size, prompt_tokens
        self.network = Network(
            "critic",
            roles.parameters("critic"),
            lr=h.critic.lr,
            clip=h.grad_clip,
            micro_batch_size=micro_batch_size,
            setting="hierarchical.critic.lr",
            fused=h.optimizer == "adamw_fused",
        )
        text = {"ids": torch.zeros(h.critic.max_tokens, dtype=torch.int32), "lengths": torch.tensor(0)}
        columns = {f"{name}_{part}": column for name in _TEXTS for part, column in text.items()}
        columns |= {
            "reward": torch.tensor(0.0, dtype=torch.float64),
            "done": torch.tensor(False),
            "version": torch.tensor(0),
        }
        if h.critic.draws:
            columns |= {"prompt": torch.zeros(prompt_tokens, dtype=torch.int32), "prompt_length": torch.tensor(0)}
        self.resampler = ActionResampler(roles, h, (seed, "again"), rows)
        self.replay_buffer = ReplayBuffer(h.replay.capacity, columns)

    def insert(self, transitions: Transitions) -> dict[str, Tensor]:
        """Add transitions to the replay buffer, the same on all ranks, and return the new rows."""
        rows: dict[str, Tensor] = {
            "reward": transitions.reward,
            "done": transitions.done,
            "version": transitions.version,
        }
        texts = (transitions.observations, transitions.actions, transitions.next_observations)
        for name, column in zip(_TEXTS, texts, strict=True):
            rows[f"{name}_ids"], rows[f"{name}_lengths"] = self.roles.encode_for_critic(column)
        if self.h.critic.draws:
            rows["prompt"], rows["prompt_length"] = self._prompts(transitions.observations)
        self.replay_buffer.add(rows)
        return rows

    def _prompts(self, observations: Sequence[TokenIds]) -> tuple[Tensor, Tensor]:
        observations = [prompt[-self.prompt_tokens :] for prompt in observations]
        table = torch.zeros(len(observations), self.prompt_tokens, dtype=torch.int32)
        for row, prompt in enumerate(observations):
            table[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        return table, torch.tensor([len(prompt) for prompt in observations])

    def train(self, iteration: int, actor: int, guidance: int) -> dict[str, float]:
        """Take this iteration's updates, given the versions of both policies, and return their metrics."""
        generated = self.resampler.generated
        steps = [
            self.step(iteration, step, guidance, lambda prompts: self.resampler.sample(prompts, actor))
            for step in range(self.h.critic.updates)
        ]
        usable_rows = self._usable(guidance)
        versions = self.replay_buffer.columns["version"][: len(self.replay_buffer)]
        return metrics.of_steps("critic", steps) | {
            "critic/draws": self.resampler.generated - generated,
            "replay/rows": len(self.replay_buffer),
            "replay/usable": float(usable_rows.double().mean()),
            "replay/age": float((guidance - versions[usable_rows]).double().mean()),
        }

    def _usable(self, version: int) -> Tensor:
        count, columns = len(self.replay_buffer), self.replay_buffer.columns
        return usable(columns["done"][:count], columns["version"][:count], version, self.h.replay.max_age)

    def step(self, iteration: int, step: int, version: int, sample_actions: SampleActions) -> StepResult:
        """Update the critic and then its target network. `version`: that of the guidance."""
        rows = self.replay_buffer.sample(
            self.h.critic.batch_size,
            self.seed,
            "critic",
            iteration,
            step,
            among=self._usable(version),
            rank=distributed.rank(),
            ranks=distributed.ranks(),
        )
        order = rows["observation_lengths"].argsort(stable=True)  # micro-batches of similar length need little padding
        rows = {name: column[order] for name, column in rows.items()}
        loss_fn = self._loss_fn(rows, self.targets(rows, sample_actions), self.h.critic.batch_size)
        result = optimizer_step(self.network, range(len(rows["reward"])), loss_fn)
        self.roles.target.update()
        return result

    def _loss_fn(self, rows: dict[str, Tensor], targets: CriticValues, denominator: int) -> LossFn:
        observations, actions = _texts(rows, "observation"), _texts(rows, "action")
        device = self.roles.device("critic")

        def loss_fn(chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
            index = list(chosen)
            values: CriticValues = self.roles.critic(
                _select(observations, index, device), _select(actions, index, device)
            )
            target = CriticValues(
                q=targets.q[:, index].to(values.q),
                v=targets.v[:, index].to(values.v),
                floor=targets.floor[index].to(values.floor),
            )
            loss = losses.critic_loss(values, target, denominator)
            return loss, loss.new_zeros(0)

        return loss_fn

    @torch.no_grad()
    def targets(self, rows: dict[str, Tensor], sample_actions: SampleActions | None = None) -> CriticValues:
        """Return TD targets of these rows from the target network. V is averaged over actions of `sample_actions`, or
        without it taken at the rollout's own action."""
        resampled = sample_actions is not None and self.h.critic.draws > 0
        actions = self._resampled(rows, sample_actions) if resampled and sample_actions else [_texts(rows, "action")]
        observations, next_observations = _texts(rows, "observation"), _texts(rows, "next_observation")
        target, device = self.roles.target.critic, self.roles.device("target")
        results = []
        for start in range(0, len(rows["reward"]), self.micro_batch_size):
            some = slice(start, start + self.micro_batch_size)
            seen = _select(observations, some, device)
            q = torch.stack([target.q_of(seen, _select(action, some, device)) for action in actions], -1)
            next_v = self._next_values(next_observations, rows["done"], some, q)
            results.append(
                losses.critic_targets(
                    rows["reward"][some].to(next_v),
                    rows["done"][some].to(device),
                    next_v,
                    q,
                    self.h.gamma,
                    self.h.critic.pessimistic,
                )
            )
        return _joined(results)

    def _next_values(self, texts: PaddedTexts, done: Tensor, some: slice, like: Tensor) -> Tensor:
        """Return (2, n): the target's V of the next observations; 0 after a last answer."""
        values, going = like.new_zeros(2, len(done[some])), (~done[some]).nonzero().squeeze(-1)
        if len(going):
            values[:, going.to(values.device)] = self.roles.target.critic.v_of(
                _select(texts, (going + some.start).tolist(), self.roles.device("target"))
            )
        return values

    def _resampled(self, rows: dict[str, Tensor], sample_actions: SampleActions) -> list[PaddedTexts]:
        prompts = [
            tuple(ids[:length])
            for ids, length in zip(rows["prompt"].tolist(), rows["prompt_length"].tolist(), strict=True)
        ]
        actions = sample_actions(prompts)
        return [self.roles.encode_for_critic([some[k] for some in actions]) for k in range(self.h.critic.draws)]

    @torch.no_grad()
    def td_error(self, rows: dict[str, Tensor]) -> float:
        """Return the loss on rows that the critic was not yet trained on."""
        values = self.values(_texts(rows, "observation"), _texts(rows, "action"))
        return float(losses.critic_loss(values, self.targets(rows), len(rows["reward"])))

    @torch.no_grad()
    def values(self, observations: PaddedTexts, actions: PaddedTexts) -> CriticValues:
        """Return the critic's values of N actions, on the CPU."""
        critic: DoubleCritic = self.roles.critic
        device, results = self.roles.device("critic"), []
        for start in range(0, len(observations[0]), self.micro_batch_size):
            some = slice(start, start + self.micro_batch_size)
            results.append(critic(_select(observations, some, device), _select(actions, some, device)))
        return _joined(results)

    def values_of_answers(self, prompts: Sequence[TokenIds], answers: Sequence[TokenIds]) -> CriticValues:
        """Return the critic's values of answers to prompts, (2, N) and (N,) on the CPU in float64."""
        return self.values(self.roles.encode_for_critic(prompts), self.roles.encode_for_critic(answers))

    @torch.no_grad()
    def target_distance(self) -> float:
        """Return the norm of the difference between the weights of the critic and its target network."""
        pairs = zip(self.roles.target.critic.parameters(), self.roles.critic.parameters(), strict=True)
        squares = [
            (online.to(target) - target).square().sum().double().cpu()
            for whole in pairs  # in parts, to bound the memory of the differences
            for target, online in zip(*(torch.split(weight.detach().flatten(), _PART) for weight in whole), strict=True)
        ]
        return float(torch.stack(squares).sum().sqrt())


def _texts(rows: dict[str, Tensor], name: str) -> PaddedTexts:
    return rows[f"{name}_ids"], rows[f"{name}_lengths"]


def _select(texts: PaddedTexts, index: slice | Sequence[int], device: Any) -> Text:
    return padded_text((texts[0][index], texts[1][index]), device)


def _joined(values: Sequence[CriticValues]) -> CriticValues:
    return CriticValues(
        q=torch.cat([some.q for some in values], -1).double().cpu(),
        v=torch.cat([some.v for some in values], -1).double().cpu(),
        floor=torch.cat([some.floor for some in values], -1).double().cpu(),
    )
