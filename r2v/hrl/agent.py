"""All models of hierarchical training as one object, for inspection.

    agent = ArcherAgent(config)
    agent.target_critic = DoubleCritic("cpu", backbone, size)     # the target network on the CPU

Training is `r2v train_hierarchical`; this builds the same models on the same devices.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from r2v.config import Config
from r2v.hrl.algorithm.critic import DoubleCritic
from r2v.hrl.models.roles import build_roles
from r2v.hrl.parallel.placement import Devices


class ArcherAgent:
    """Actor, guidance, reference, critic and target network of a configuration (`policy`, `hierarchical`, `seed`).

    `weights`: exported policy from which both policies start. `devices`: in place of the placement's devices.
    """

    def __init__(self, config: Config, weights: Path | None = None, devices: Devices | None = None) -> None:
        self.config = config
        self.roles = build_roles(config.policy, config.hierarchical, config.seed, weights, devices)

    @property
    def critic(self) -> DoubleCritic:
        """The trained critic."""
        return self.roles.critic

    @property
    def target_critic(self) -> DoubleCritic:
        """The target network, a lagging copy of the critic."""
        return self.roles.target.critic

    @target_critic.setter
    def target_critic(self, network: DoubleCritic) -> None:
        """Make another network of the critic's shape the target, on its own device.

        It gets the critic's weights, because a target of unrelated weights would give meaningless TD targets.
        """
        network.load_state_dict(self.critic.state_dict())
        device = str(next(network.parameters()).device)
        self.roles.target.replace(network)
        self.roles = replace(self.roles, devices=replace(self.roles.devices, target=device))

    def _memory_efficient_target_update(self, tau: float) -> None:
        """target <- (1 - tau) * target + tau * critic, in chunks, on the target's own device.

        Additional memory is one chunk (`TargetNetwork.chunk` values), not a second copy of the critic.
        """
        self.roles.target.update(tau)
