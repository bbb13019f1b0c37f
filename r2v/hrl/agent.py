"""All models of hierarchical training behind one name, to look at and to talk to.

    agent = ArcherAgent(config)
    first = agent.answer("Ann has 3 apples and buys 4 more. ...")
    hint = agent.hint("Ann has ...", first)
    agent.answer("Ann has ...", [(first, hint)])

Training is `r2v train_hierarchical`; this makes the same models in the same places, adapters instead of copies and all,
where the names of seed 000 are looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2v.config import Config
from r2v.hrl.algorithm.critic import DoubleCritic
from r2v.hrl.models.roles import Speaking, build_roles
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.rollout.generator import Ask, Speaker
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Prompter, Round


class ArcherAgent:
    """Actor, guidance, reference, critic and its slow copy of a configuration (`policy`, `hierarchical`, `seed`).

    `weights` are an exported policy that both start from; `devices` overrides where roles stand.
    """

    def __init__(self, config: Config, weights: Path | None = None, devices: Devices | None = None) -> None:
        self.config = config
        self.roles = build_roles(config.policy, config.hierarchical, config.seed, weights, devices)
        self.prompter = Prompter(self.roles.tokenizer)

    @property
    def critic(self) -> DoubleCritic:
        """What utterances are worth."""
        return self.roles.critic

    @property
    def target_critic(self) -> DoubleCritic:
        """The critic's slow copy."""
        return self.roles.target.critic

    def update_target(self) -> None:
        """One Polyak step of the slow copy by `critic.tau`, a bounded number of values at a time, wherever it is."""
        self.roles.target.update()

    def answer(self, problem: str, rounds: Sequence[Round] = ()) -> str:
        """The actor's likeliest answer, after these rounds of answer and hint."""
        return self._said(
            "actor", self.prompter.answer(_problem(problem), rounds), self.config.hierarchical.answer_tokens
        )

    def hint(self, problem: str, answer: str, rounds: Sequence[Round] = ()) -> str:
        """The guidance's likeliest hint to an answer, after these earlier rounds."""
        return self._said(
            "guidance", self.prompter.hint(_problem(problem), rounds, answer), self.config.hierarchical.hint_tokens
        )

    def _said(self, role: Speaking, prompt: tuple[int, ...], most: int) -> str:
        ask = Ask(prompt=prompt, key=(), max_tokens=most, temperature=0.0, weighed=False)
        return Speaker(self.roles, role).say([ask])[0].text


def _problem(text: str) -> Problem:
    return Problem(id="asked", text=text, answer="")
