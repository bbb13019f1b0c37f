"""The state of a training between two phases: what a checkpoint holds beside weights, optimizers and replay buffer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from r2v.data.schema import from_dict
from r2v.hrl.algorithm.training_batch import TrainingBatch
from r2v.hrl.rollout.episode import GuidedEpisode

TRAINING_PHASES = ("rollout", "insert", "critic", "advantages", "actor", "guidance", "finish")
WATCHED = ("reward/mean", "reward/std", "actor/entropy")
"""Metrics whose course over the iterations is kept."""


@dataclass(kw_only=True)
class BestActor:
    """The actor that did best on the held-out problems so far; of equal ones the latest."""

    iteration: int = 0
    """After how many iterations; 0: none was evaluated."""
    accuracy: float = -1.0
    """Of its last answers."""
    worse: int = 0
    """Evaluations since without a better accuracy."""
    weights: dict[str, Tensor] = field(default_factory=dict)

    def note(self, iteration: int, accuracy: float) -> bool:
        """True if the actor of this evaluation is the best now: its weights are to be kept."""
        self.worse = 0 if accuracy > self.accuracy else self.worse + 1
        if accuracy < self.accuracy:
            return False
        self.iteration, self.accuracy = iteration, accuracy
        return True

    def over(self, patience: int | None) -> bool:
        """True if so many evaluations brought nothing better."""
        return patience is not None and self.worse >= patience

    def report(self) -> dict[str, Any]:
        """Without its weights."""
        return {"iteration": self.iteration, "accuracy": self.accuracy}

    def __str__(self) -> str:
        return f"the best was {100 * self.accuracy:.1f} % after {self.iteration}"


@dataclass(kw_only=True)
class TrainingState:
    """State between two phases, the same on all ranks."""

    iteration: int = 0
    phase: str = "rollout"
    """The next one."""
    actor: int = 0
    """Updates of the actor so far: its version."""
    guidance: int = 0
    """Updates of the guidance so far."""
    episodes: list[GuidedEpisode] = field(default_factory=list)
    """This iteration's."""
    batches: dict[str, TrainingBatch] = field(default_factory=dict)
    """This iteration's training batches, by role."""
    metrics: dict[str, float] = field(default_factory=dict)
    """This iteration's metrics so far."""
    untrained: dict[str, Any] | None = None
    """Accuracy on the held-out problems before training."""
    trained: dict[str, Any] | None = None
    """Accuracy on the held-out problems at the last evaluation."""
    best: BestActor = field(default_factory=BestActor)
    """The actor of the best evaluation."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Some held-out conversations, by how many iterations there had been."""
    history: dict[str, list[float]] = field(default_factory=dict)
    """Metrics that alarms look at (`WATCHED`), by iteration."""
    alarms: list[str] = field(default_factory=list)
    """Names of the alarms that were given."""

    @property
    def number(self) -> int:
        """Phases passed, skipped ones included: the number in a checkpoint's name."""
        return self.iteration * len(TRAINING_PHASES) + TRAINING_PHASES.index(self.phase)

    def watch(self) -> None:
        """Add this iteration's metrics to the history."""
        for name in WATCHED:
            self.history.setdefault(name, [])
            if name in self.metrics:
                self.history[name].append(self.metrics[name])

    def next_iteration(self) -> None:
        """Begin the next iteration and drop this one's episodes, batches and metrics."""
        self.iteration, self.phase = self.iteration + 1, TRAINING_PHASES[0]
        self.episodes, self.batches, self.metrics = [], {}, {}

    def plain(self) -> dict[str, Any]:
        """The state as numbers, texts and tensors, which a checkpoint may hold."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["episodes"] = json.dumps([dataclasses.asdict(episode) for episode in self.episodes])
        fields["best"] = vars(self.best)
        fields["batches"] = {role: vars(batch) for role, batch in self.batches.items()}
        return fields

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> TrainingState:
        """The state that `plain` was made of."""
        fields = dict(plain)
        fields["best"] = BestActor(**fields["best"])
        fields["episodes"] = [from_dict(GuidedEpisode, episode) for episode in json.loads(fields["episodes"])]
        fields["batches"] = {role: TrainingBatch(**batch) for role, batch in fields["batches"].items()}
        return cls(**fields)


def hash_of(content: Any) -> str:
    """Hex SHA-256 of nested dicts and lists of tensors, numbers and texts."""
    sha256 = hashlib.sha256()
    _add(sha256, content)
    return sha256.hexdigest()


def _add(sha256: Any, content: Any) -> None:
    if isinstance(content, Mapping):
        for name in sorted(content):
            sha256.update(json.dumps(name).encode())
            _add(sha256, content[name])
    elif isinstance(content, Tensor):
        sha256.update(f"{content.dtype}{list(content.shape)}".encode())
        sha256.update(content.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        sha256.update(json.dumps(content).encode())
