"""State of a training between two phases: a checkpoint's content without weights, optimizers and replay buffer."""

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
"""Metrics with a history over the iterations."""


@dataclass(kw_only=True)
class BestActor:
    """The best actor on the held-out problems so far; the latest of equal ones."""

    iteration: int = 0
    """Number of iterations before it; 0: none was evaluated."""
    accuracy: float = -1.0
    """Accuracy of its last answers."""
    worse: int = 0
    """Number of evaluations since without a better accuracy."""
    weights: dict[str, Tensor] = field(default_factory=dict)

    def note(self, iteration: int, accuracy: float) -> bool:
        """Record an evaluation; True if its actor is the best now, whose weights are to be kept."""
        self.worse = 0 if accuracy > self.accuracy else self.worse + 1
        if accuracy < self.accuracy:
            return False
        self.iteration, self.accuracy = iteration, accuracy
        return True

    def over(self, patience: int | None) -> bool:
        """True if `patience` evaluations brought no better actor."""
        return patience is not None and self.worse >= patience

    def report(self) -> dict[str, Any]:
        """Return iteration and accuracy."""
        return {"iteration": self.iteration, "accuracy": self.accuracy}


@dataclass(kw_only=True)
class TrainingState:
    """State between two phases, equal on all ranks."""

    iteration: int = 0
    phase: str = "rollout"
    """Next phase."""
    actor: int = 0
    """Number of updates of the actor so far: its version."""
    guidance: int = 0
    """Number of updates of the guidance so far: its version."""
    episodes: list[GuidedEpisode] = field(default_factory=list)
    """Episodes of this iteration."""
    batches: dict[str, TrainingBatch] = field(default_factory=dict)
    """Training batches of this iteration, by role."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of this iteration so far."""
    untrained: dict[str, Any] | None = None
    """Accuracy on the held-out problems before training."""
    trained: dict[str, Any] | None = None
    """Accuracy on the held-out problems at the last evaluation."""
    best: BestActor = field(default_factory=BestActor)
    """Actor of the best evaluation."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Some held-out conversations, by the number of iterations before them."""
    history: dict[str, list[float]] = field(default_factory=dict)
    """Metrics for alarms (`WATCHED`), by iteration."""
    alarms: list[str] = field(default_factory=list)
    """Names of the raised alarms."""

    @property
    def number(self) -> int:
        """Number of phases so far, skipped ones included: the number in a checkpoint's name."""
        return self.iteration * len(TRAINING_PHASES) + TRAINING_PHASES.index(self.phase)

    def watch(self) -> None:
        """Add this iteration's metrics to the history."""
        for name in WATCHED:
            self.history.setdefault(name, [])
            if name in self.metrics:
                self.history[name].append(self.metrics[name])

    def next_iteration(self) -> None:
        """Begin the next iteration and clear episodes, batches and metrics."""
        self.iteration, self.phase = self.iteration + 1, TRAINING_PHASES[0]
        self.episodes, self.batches, self.metrics = [], {}, {}

    def plain(self) -> dict[str, Any]:
        """Return the state as numbers, texts and tensors for a checkpoint."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["episodes"] = json.dumps([dataclasses.asdict(episode) for episode in self.episodes])
        fields["best"] = vars(self.best)
        fields["batches"] = {role: vars(batch) for role, batch in self.batches.items()}
        return fields

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> TrainingState:
        """Return the state of a `plain` record."""
        fields = dict(plain)
        fields["best"] = BestActor(**fields["best"])
        fields["episodes"] = [from_dict(GuidedEpisode, episode) for episode in json.loads(fields["episodes"])]
        fields["batches"] = {role: TrainingBatch(**batch) for role, batch in fields["batches"].items()}
        return cls(**fields)


def hash_of(content: Any) -> str:
    """Return the hex SHA-256 of nested dicts and lists of tensors, numbers and texts."""
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
