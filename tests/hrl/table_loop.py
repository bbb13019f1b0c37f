"""One whole iteration on the table world, from draws, for `test_whole_loop.py`.

First answers, two hints each, second answers; the critic learns from replay with its target network, the actor from the
critic's advantages, the guidance from a comparison of two hints. Policies are tables of logits. No expectation is used:
`tabular_mdp.worth` only scores the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from r2v.hrl.algorithm.advantage import critic_advantage, leave_one_out
from r2v.hrl.algorithm.critic import TargetNetwork
from r2v.hrl.algorithm.losses import critic_loss, critic_targets, policy_loss, token_weights
from r2v.hrl.algorithm.rewards import turn_rewards
from r2v.hrl.training.replay_buffer import ReplayBuffer, usable
from r2v.randomness import seed_of
from tests.hrl import tabular_mdp

from . import tabular

HINTS = 2
ANSWERS = 32
"""First answers an iteration: 64 episodes with two hints each."""
CRITIC_STEPS, WARM_UP, BATCH = 8, 20, 128
COLUMNS = {name: torch.tensor(0) for name in ("turn", "a", "g", "b", "version")} | {
    "reward": torch.tensor(0.0, dtype=torch.float64)
}


@dataclass(frozen=True, kw_only=True)
class ActionResampler:
    """One iteration's episodes, side by side (ANSWERS, HINTS)."""

    a: Tensor
    g: Tensor
    b: Tensor
    scores: Tensor
    """Shape (ANSWERS, HINTS, 2)."""


class Learner:
    """The three policies, the critic, its target and the replay buffer."""

    def __init__(self, seed: int, rewards: tuple[float, float]) -> None:
        self.seed, self.rewards = seed, rewards
        shapes = [(3,), (3, 2), (3, 2, 3)]
        self.first, self.hint, self.second = (
            torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes
        )
        self.critic = tabular.critic()
        self.target = TargetNetwork(self.critic, tau=0.1)
        self.replay_buffer = ReplayBuffer(20_000, COLUMNS)
        self.optimizers = {
            "critic": torch.optim.Adam(self.critic.parameters(), lr=0.02, fused=True),
            "actor": torch.optim.Adam([self.first, self.second], lr=0.1, fused=True),
            "guidance": torch.optim.Adam([self.hint], lr=0.1, fused=True),
        }
        self.version = 0

    def policies(self) -> tabular_mdp.Policies:
        with torch.no_grad():
            return tabular_mdp.Policies.of(self.first, self.hint, self.second)

    def iterate(self, iteration: int) -> None:
        """Play, train the critic, and after the warm-up train the policies."""
        draws = self.play(iteration)
        self.insert(draws)
        held = {name: column[: len(self.replay_buffer)] for name, column in self.replay_buffer.columns.items()}
        among = usable(held["turn"] == 1, held["version"], self.version)
        for step in range(CRITIC_STEPS):
            self.critic_step(iteration, step, among)
        if iteration >= WARM_UP:
            self.answer_better(draws)
            self.hint_better(draws)
            self.version += 1

    def play(self, iteration: int) -> ActionResampler:
        """Play turn 1, hints, turn 2."""
        now, generator = self.policies(), self._generator("play", iteration)
        a = torch.multinomial(now.first, ANSWERS, True, generator=generator)[:, None].expand(-1, HINTS)
        g = torch.multinomial(now.hint[a[:, 0]], HINTS, True, generator=generator)
        b = torch.multinomial(now.second[a, g].reshape(-1, 3), 1, generator=generator).reshape(-1, HINTS)
        return ActionResampler(
            a=a, g=g, b=b, scores=torch.stack([tabular_mdp.first_score()[a], tabular_mdp.second_score()[a, g, b]], -1)
        )

    def insert(self, draws: ActionResampler) -> None:
        """Add two transitions per episode."""
        rho = turn_rewards(draws.scores.reshape(-1, 2), self.rewards)
        for turn in range(2):
            rows = {name: getattr(draws, name).reshape(-1) for name in ("a", "g", "b")}
            rows["turn"] = torch.full_like(rows["a"], turn)
            self.replay_buffer.add(
                {**rows, "version": torch.full_like(rows["a"], self.version), "reward": rho[:, turn]}
            )

    def critic_step(self, iteration: int, step: int, among: Tensor) -> None:
        """Take one step of the critic, then one of its target."""
        rows = self.replay_buffer.sample(BATCH, self.seed, "critic", iteration, step, among=among)
        a, g, b, done = rows["a"], rows["g"], rows["b"], rows["turn"] == 1
        seen = torch.where(done, tabular.second(a, g), tabular.task(a))
        said = torch.where(done, tabular.said_second(a, g, b), tabular.said_first(a))
        with torch.no_grad():
            drawn = self.target.critic.q_of((seen,), (self._resampled(rows, done, iteration, step),))[..., None]
            ahead = self.target.critic.v_of((tabular.second(a, g),))
            wanted = critic_targets(rows["reward"], done, ahead, drawn, tabular_mdp.GAMMA)
        self._step("critic", critic_loss(self.critic((seen,), (said,)), wanted, BATCH))
        self.target.update()

    def _resampled(self, rows: dict[str, Tensor], done: Tensor, iteration: int, step: int) -> Tensor:
        """Return one answer of the current actor to each row's observation."""
        now, generator = self.policies(), self._generator("again", iteration, step)
        first = torch.multinomial(now.first, BATCH, True, generator=generator)
        second = torch.multinomial(now.second[rows["a"], rows["g"]], 1, generator=generator)[:, 0]
        return torch.where(done, tabular.said_second(rows["a"], rows["g"], second), tabular.said_first(first))

    def answer_better(self, draws: ActionResampler) -> None:
        """Take the actor's step on this iteration's answers; a first answer counts once, whatever its hints."""
        a, g, b = (part.reshape(-1) for part in (draws.a, draws.g, draws.b))
        once = draws.a[:, 0]
        with torch.no_grad():
            values = self.critic(
                (torch.cat([tabular.task(once), tabular.second(a, g)]),),
                (torch.cat([tabular.said_first(once), tabular.said_second(a, g, b)]),),
            )
        logp = torch.cat([self.first.log_softmax(-1)[once], self.second.log_softmax(-1)[a, g, b]])[:, None]
        mask = torch.ones_like(logp, dtype=torch.bool)
        self._step("actor", policy_loss(logp, token_weights(critic_advantage(values)), mask, len(mask)))

    def hint_better(self, draws: ActionResampler) -> None:
        """Take the guidance's step: the improvement by each hint, compared with the other hint for the same answer."""
        before, after = draws.scores.unbind(-1)
        reward = after - before
        logp = self.hint.log_softmax(-1)[draws.a, draws.g].reshape(-1, 1)
        mask = torch.ones_like(logp, dtype=torch.bool)
        weights = token_weights(leave_one_out(reward).reshape(-1))
        self._step("guidance", policy_loss(logp, weights, mask, len(mask)))

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def _generator(self, *what: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(seed_of(self.seed, *what))
