"""Where a training is: what a checkpoint holds of it beside weights, optimizers and memory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from r2v.hrl.algorithm.training_batch import Lesson
from r2v.hrl.rollout.episode import Episode, Hinted, Turn
from r2v.hrl.rollout.generator import Segment
from r2v.hrl.tasks.problems import Problem

PHASES = ("rollout", "insert", "critic", "freeze", "actor", "guidance", "finish")


@dataclass(kw_only=True)
class State:
    """Between two phases. All ranks have the same."""

    iteration: int = 0
    phase: str = "rollout"
    """The one that comes next."""
    actor: int = 0
    """Updates that the actor has had: its version."""
    guidance: int = 0
    episodes: list[Episode] = field(default_factory=list)
    """This iteration's."""
    lessons: dict[str, Lesson] = field(default_factory=dict)
    """By role, frozen."""
    figures: dict[str, float] = field(default_factory=dict)
    """This iteration's metrics so far."""
    untrained: dict[str, Any] | None = None
    """What the held-out problems came to before anything was learned."""
    trained: dict[str, Any] | None = None
    """When they were measured last."""
    history: list[tuple[float, float]] = field(default_factory=list)
    """Mean and spread of rewards, by iteration."""
    alarmed: bool = False

    @property
    def number(self) -> int:
        """Phases that have passed, skipped ones too: what a checkpoint is called."""
        return self.iteration * len(PHASES) + PHASES.index(self.phase)

    def next_iteration(self) -> None:
        """Begin it: nothing of this one is needed any more."""
        self.iteration, self.phase = self.iteration + 1, PHASES[0]
        self.episodes, self.lessons, self.figures = [], {}, {}

    def plain(self) -> dict[str, Any]:
        """As numbers, texts and tensors, which a checkpoint may hold."""
        held = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        held["episodes"] = [dataclasses.asdict(episode) for episode in self.episodes]
        held["lessons"] = {role: vars(lesson) for role, lesson in self.lessons.items()}
        return held

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> State:
        """What `plain` was made of."""
        episodes = [_episode(one) for one in plain["episodes"]]
        lessons = {role: Lesson(**lesson) for role, lesson in plain["lessons"].items()}
        return cls(**{**plain, "episodes": episodes, "lessons": lessons})


def _episode(plain: Mapping[str, Any]) -> Episode:
    return Episode(
        problem=Problem(**plain["problem"]),
        turns=tuple(_turn(turn) for turn in plain["turns"]),
        hints=tuple(
            tuple(Hinted(hint=Segment(**one["hint"]), after=_turn(one["after"])) for one in group)
            for group in plain["hints"]
        ),
    )


def _turn(plain: Mapping[str, Any]) -> Turn:
    return Turn(answer=Segment(**plain["answer"]), score=plain["score"])


def hash_of(content: Any) -> str:
    """Hex SHA-256 of nested dicts and lists of tensors, numbers and texts."""
    whole = hashlib.sha256()
    _add(whole, content)
    return whole.hexdigest()


def _add(whole: Any, content: Any) -> None:
    if isinstance(content, Mapping):
        for name in sorted(content):
            whole.update(json.dumps(name).encode())
            _add(whole, content[name])
    elif isinstance(content, Tensor):
        whole.update(f"{content.dtype}{list(content.shape)}".encode())
        whole.update(content.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        whole.update(json.dumps(content).encode())
