"""Configuration of how things run: concurrency, logging, and the server in front of agents. Nothing here changes a
result."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from r2v.constraints import RUNTIME, Distinct, Line, Name, OrAuto, Positive, Range, check_fields, members

TRACKERS = ("wandb", "tensorboard", "aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio")
"""Names that `logging.trackers` takes: wandb, and the trackers of accelerate."""
_MOST_THREADS = 4096


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Concurrency of rollouts; nothing here changes a result."""

    workers: Annotated[int | str, OrAuto(rule=Range(at_least=1, at_most=_MOST_THREADS))] = field(
        default="auto", metadata=RUNTIME
    )
    """Threads that step environments. auto: the CPUs of the job's allocation, or one a conversation where the benchmark
    says that its worlds wait (`Capabilities.waits`, `needs_network`)."""
    max_conversations: Annotated[int, Range(at_least=1, at_most=1_000_000)] = field(default=64, metadata=RUNTIME)
    """Most conversations at the same time."""
    batch_size: Annotated[int, Range(at_least=1, at_most=1_000_000)] = field(default=64, metadata=RUNTIME)
    """Largest batch of the local model, in sequences."""
    sites: Annotated[list[Line], Distinct(empty=True)] = field(default_factory=list, metadata=RUNTIME)
    """Site sets of a benchmark whose worlds share state, by the name or URL that it knows them by; each has a state of
    its own. Empty: the one that the benchmark is built with."""
    episodes_per_block: Annotated[int | str, OrAuto(rule=Range(at_least=1, at_most=1_000_000))] = field(
        default="auto", metadata=RUNTIME
    )
    """Episodes of one method in a block, which is what one of several helpers takes at a time. auto: four times
    max_conversations, so that waves stay full."""

    helpers: Annotated[int | str, OrAuto(rule=Range(at_least=0, at_most=256), word="join")] = field(
        default=0, metadata=RUNTIME
    )
    """Helpers that a stage's command starts beside itself on its machine, which play blocks of its episodes; a
    collection by provider batches takes none. join: the command is such a helper itself, of the process that makes the
    result, and ends when nothing is left."""

    @property
    def is_helper(self) -> bool:
        """True if a stage's command plays blocks for another process."""
        return self.helpers == "join"

    def __post_init__(self) -> None:
        check_fields("rollout", self)

    def world_threads(self, *, waiting: bool = False, cpus: int | None = None) -> int:
        """`workers`, `auto` resolved: for worlds that spend their time `waiting`, or for ones that compute on `cpus`
        (None: those of this process). Never more than conversations."""
        if self.workers != "auto":
            return int(self.workers)
        computing = allocated_cpus() if cpus is None else cpus
        return min(self.max_conversations, _MOST_THREADS if waiting else max(1, computing))


def allocated_cpus() -> int:
    """CPUs that this process may use: those that Slurm gave the job on this node, and that the system lets it have."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return max(1, min(allowed, int(granted))) if granted.isdecimal() else allowed


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Where progress and metrics are logged."""

    report: bool = field(default=True, metadata=RUNTIME)
    """Write the report whenever evaluate or ablations has ended, by whichever door."""
    trackers: Annotated[list[Name], Distinct(empty=True)] | None = field(default=None, metadata=RUNTIME)
    """Trackers that get the figures of every stage: wandb, tensorboard, aim, clearml, comet_ml, dvclive, mlflow,
    swanlab or trackio; none where empty, and where not set wandb once it is set up."""

    def __post_init__(self) -> None:
        check_fields("logging", self)
        members("logging.trackers", self.trackers or (), TRACKERS)


def _runtime(default: Any) -> Any:
    return field(default=default, metadata=RUNTIME)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The server of `r2v serve` and `r2v record`. Its LLM is `teacher`, and `teacher.max_usd` caps everything that it
    forwards."""

    name: Name = _runtime("default")
    """Name of the server: books, logs and recorded sessions are in data/served/<name>."""
    host: Line = _runtime("127.0.0.1")
    """Address to listen on."""
    port: Annotated[int, Range(at_least=0, at_most=65_535)] = _runtime(8484)
    """Port to listen on; 0: any free one."""
    shadow: bool = _runtime(False)
    """Decide at each step and log it, but let the LLM act."""
    llm_down: Literal["error", "small"] = _runtime("error")
    """Answer where the LLM cannot be reached: error (status 503), or the small model within its domain."""
    any_model: bool = _runtime(False)
    """Ask the LLM whichever model a client names. Otherwise names that are not R2V's pass unchanged."""
    max_usd_per_key: Positive | None = _runtime(None)
    """Hard cap in USD on what the clients of one key may spend; None: none."""
    max_usd_per_session: Positive | None = _runtime(None)
    """Hard cap in USD on one session; None: none."""
    max_usd_per_day: Positive | None = _runtime(None)
    """Hard cap in USD on one day, in UTC; None: none."""
    idle_seconds: Positive = _runtime(300.0)
    """Longest silence within a reply. A reply as a whole has no limit."""
    drain_seconds: Positive = _runtime(120.0)
    """Seconds that a reply is read on after its client has left, for its usage. Without one it is booked as unknown."""

    def __post_init__(self) -> None:
        check_fields("serve", self)
