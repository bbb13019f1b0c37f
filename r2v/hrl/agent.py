"""All models of hierarchical training behind one name, to inspect and to talk to.

    agent = ArcherAgent(config)
    first = agent.answer("Ann has 3 apples and buys 4 more. ...")
    hint = agent.hint("Ann has ...", first)
    agent.answer("Ann has ...", [(first, hint)])

Training is `r2v train_hierarchical`; this builds the same models on the same devices, adapters in place of copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from r2v.config import Config
from r2v.hrl.algorithm.critic import DoubleCritic
from r2v.hrl.models.roles import GeneratingRole, build_roles
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Prompter, Round


class ArcherAgent:
    """Actor, guidance, reference, critic and target network of a configuration (`policy`, `hierarchical`, `seed`).

    `weights` are an exported policy that both policies start from; `devices` overrides the placement's devices.
    """

    def __init__(self, config: Config, weights: Path | None = None, devices: Devices | None = None) -> None:
        self.config = config
        self.roles = build_roles(config.policy, config.hierarchical, config.seed, weights, devices)
        self.prompter = Prompter(self.roles.tokenizer, enable_thinking=config.policy.enable_thinking or False)

    @property
    def critic(self) -> DoubleCritic:
        """The critic that is trained."""
        return self.roles.critic

    @property
    def target_critic(self) -> DoubleCritic:
        """The target network: a copy of the critic that trails it."""
        return self.roles.target.critic

    @target_critic.setter
    def target_critic(self, network: DoubleCritic) -> None:
        """Make another network of the critic's shape the target, on the device where it stands.

        It takes the critic's weights: a target of unrelated weights would give meaningless TD targets.
        """
        network.load_state_dict(self.critic.state_dict())
        device = str(next(network.parameters()).device)
        self.roles.target.replace(network)
        self.roles = replace(self.roles, devices=replace(self.roles.devices, target=device))

    def update_target(self) -> None:
        """One Polyak step of the target network with the coefficient `critic.tau`."""
        self._memory_efficient_target_update(self.config.hierarchical.critic.tau)

    def _memory_efficient_target_update(self, tau: float) -> None:
        """target <- (1 - tau) * target + tau * critic, in chunks, on the target's own device.

        Memory beside the two networks is one chunk (`TargetNetwork.chunk` values), not a second copy of the critic.
        """
        self.roles.target.update(tau)

    def answer(self, problem: str, rounds: Sequence[Round] = ()) -> str:
        """The actor's greedy answer, after these rounds of answer and hint."""
        prompt = self.prompter.answer(_problem(problem), rounds)
        return self._generate("actor", prompt, self.config.hierarchical.longest_answer)

    def hint(self, problem: str, answer: str, rounds: Sequence[Round] = ()) -> str:
        """The guidance's greedy hint to an answer, after these earlier rounds."""
        prompt = self.prompter.hint(_problem(problem), rounds, answer)
        return self._generate("guidance", prompt, self.config.hierarchical.longest_hint)

    def _generate(self, role: GeneratingRole, prompt: tuple[int, ...], max_tokens: int) -> str:
        request = GenerationRequest(
            prompt=prompt, key=(), max_tokens=max_tokens, temperature=0.0, return_logprobs=False
        )
        return Generator(self.roles, role).generate([request])[0].text


def _problem(text: str) -> Problem:
    return Problem(id="asked", text=text, answer="")
