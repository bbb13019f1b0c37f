"""Resampled actions: answers drawn anew in states of the replay buffer, to train the critic's V heads.

ArCHer (arXiv 2402.19446) draws one for every row of every update: 12,800 per iteration for 128 episodes of rollout.
Here resampled answers are cached by state and the actor's version, so repeated states of an iteration share them.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.config import HierarchicalConfig
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.types import TokenIds
from r2v.randomness import Key, digest


class ActionResampler:
    """Source of `critic.draws` answers per state, generated once per version of the actor. `key`: prefix of all
    keys."""

    def __init__(self, roles: Roles, h: HierarchicalConfig, key: Key, rows: RolloutRows | None = None) -> None:
        self.roles, self.count, self.max_tokens = roles, h.critic.draws, h.longest_answer
        self.key, self.rows = key, rows
        self.generated = 0
        """Number of answers generated so far."""
        self._version: int | None = None
        self._cache: dict[TokenIds, tuple[TokenIds, ...]] = {}

    def sample(self, prompts: Sequence[TokenIds], version: int) -> list[tuple[TokenIds, ...]]:
        """Return `count` answers (token ids with the end token) per prompt, from the current actor of this
        `version`."""
        if version != self._version:
            self._version, self._cache = version, {}
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._cache]
        if missing:
            self._generate(missing, version)
        return [self._cache[prompt] for prompt in prompts]

    def _generate(self, prompts: Sequence[TokenIds], version: int) -> None:
        requests = [
            GenerationRequest(
                prompt=prompt,
                key=(*self.key, version, digest(*prompt).hex(), k),
                max_tokens=self.max_tokens,
                return_logprobs=False,
            )
            for prompt in prompts
            for k in range(self.count)
        ]
        completions = iter(Generator(self.roles, "actor", version, self.rows).generate(requests))
        for prompt in prompts:
            self._cache[prompt] = tuple(next(completions).tokens for _ in range(self.count))
        self.generated += len(requests)
