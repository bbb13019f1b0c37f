"""Answers drawn anew, upon states that the critic remembers: what its value heads learn from.

ArCHer draws one for every row of every update, and so 12,800 an iteration where the rollout has 128 episodes
(facts/hrl.md 3.3). A draw belongs to its state and the policy's version: the next update that meets the same state in
the same iteration is given the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.config import HierarchicalConfig
from r2v.hrl.models.roles import Roles
from r2v.hrl.rollout.generator import Ask, Speaker
from r2v.randomness import Key, digest

State = tuple[int, ...]
Answer = tuple[int, ...]
_BATCH = 64


class Draws:
    """`critic.draws` answers per state, made once for every version of the actor. `key` begins every draw's key."""

    def __init__(self, roles: Roles, h: HierarchicalConfig, key: Key, batch_size: int = _BATCH) -> None:
        self.roles, self.count, self.max_tokens = roles, h.critic.draws, h.answer_tokens
        self.key, self.batch_size = key, batch_size
        self.made = 0
        """Answers generated so far."""
        self.reused = 0
        """Answers given again so far."""
        self._version: int | None = None
        self._known: dict[State, tuple[Answer, ...]] = {}

    def of(self, states: Sequence[State], version: int) -> list[tuple[Answer, ...]]:
        """Per state `count` answers, token ids with the end token, by the actor as it is, which is this `version`."""
        if version != self._version:
            self._version, self._known = version, {}
        missing = [state for state in dict.fromkeys(states) if state not in self._known]
        if missing:
            self._draw(missing, version)
        self.reused += (len(states) - len(missing)) * self.count
        return [self._known[state] for state in states]

    def _draw(self, states: Sequence[State], version: int) -> None:
        asks = [
            Ask(
                prompt=state,
                key=(*self.key, version, digest(*state).hex(), k),
                max_tokens=self.max_tokens,
                weighed=False,
            )
            for state in states
            for k in range(self.count)
        ]
        said = iter(Speaker(self.roles, "actor", version, self.batch_size).say(asks))
        for state in states:
            self._known[state] = tuple(next(said).tokens for _ in range(self.count))
        self.made += len(asks)
