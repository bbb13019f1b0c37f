"""Configuration of how things run: concurrency and logging. Nothing here changes a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from r2v.config.checks import RUNTIME
from r2v.constraints import Line, Range, check_fields


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Concurrency of rollouts; nothing here changes a result."""

    workers: Annotated[int, Range(at_least=1, at_most=4096)] = field(default=2, metadata=RUNTIME)
    """Threads that step environments."""
    max_conversations: Annotated[int, Range(at_least=1, at_most=1_000_000)] = field(default=64, metadata=RUNTIME)
    """Most conversations at the same time."""
    batch_size: Annotated[int, Range(at_least=1, at_most=1_000_000)] = field(default=64, metadata=RUNTIME)
    """Largest batch of the local model, in sequences."""

    def __post_init__(self) -> None:
        check_fields("rollout", self)


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Where progress and metrics are logged."""

    wandb: Literal["disabled", "offline", "online"] = field(default="disabled", metadata=RUNTIME)
    """Mode of Weights and Biases; offline files are written to logs/wandb."""
    project: Line = field(default="r2v-agent", metadata=RUNTIME)
    """Name of the wandb project."""

    def __post_init__(self) -> None:
        check_fields("logging", self)
