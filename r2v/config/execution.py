"""Configuration of execution: concurrency, logging, and the server for agents. No key here changes a result."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from r2v.constraints import RUNTIME, Distinct, Line, Name, OrAuto, Positive, Range, check_fields, members

TRACKERS = ("wandb", "tensorboard", "aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio")
"""Allowed names of `logging.trackers`: wandb, and the trackers of accelerate."""
_MOST_THREADS = 4096


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Concurrency of rollouts; no key here changes a result."""

    workers: Annotated[int | str, OrAuto(rule=Range(at_least=1, at_most=_MOST_THREADS))] = field(
        default="auto", metadata=RUNTIME
    )
    """Threads that step environments. auto: the CPUs of the job's allocation, or one per conversation for benchmarks
    whose worlds wait (`Capabilities.waits`, `needs_network`)."""
    max_conversations: Annotated[int, Range(at_least=1, at_most=1_000_000)] = field(default=64, metadata=RUNTIME)
    """Maximum number of concurrent conversations."""
    batch_size: Annotated[int, Range(at_least=1, at_most=1_000_000)] | None = field(default=None, metadata=RUNTIME)
    """Largest batch of the local model, in sequences; None: 64 on a CPU, at most 512 on a GPU, by its free memory."""
    sites: Annotated[list[Line], Distinct(empty=True)] = field(default_factory=list, metadata=RUNTIME)
    """Site sets of a benchmark whose worlds share state, by the benchmark's name or URL for them; each has its own
    state. Empty: the benchmark's default one."""
    episodes_per_block: Annotated[int | str, OrAuto(rule=Range(at_least=1, at_most=1_000_000))] = field(
        default="auto", metadata=RUNTIME
    )
    """Episodes of one method in a block, the unit that a helper leases. auto: four times max_conversations, so that
    waves stay full."""

    helpers: Annotated[int | str, OrAuto(rule=Range(at_least=0, at_most=256), word="join")] = field(
        default=0, metadata=RUNTIME
    )
    """Helper processes that a stage's command starts on its machine to play blocks of its episodes; a collection by
    provider batches uses none. join: the command is itself a helper of the process that makes the result, and ends when
    no block is left."""

    @property
    def is_helper(self) -> bool:
        """True if a stage's command plays blocks for another process."""
        return self.helpers == "join"

    def __post_init__(self) -> None:
        check_fields("rollout", self)

    @property
    def rows(self) -> int:
        """Rows of a local model at a time where no free memory of a GPU decides."""
        return self.batch_size or 64

    def world_threads(self, *, waiting: bool = False, cpus: int | None = None) -> int:
        """Return `workers` with `auto` resolved: for worlds that spend their time `waiting`, or that compute on `cpus`
        (None: this process's). Never more than conversations."""
        if self.workers != "auto":
            return int(self.workers)
        computing = allocated_cpus() if cpus is None else cpus
        return min(self.max_conversations, _MOST_THREADS if waiting else max(1, computing))


def allocated_cpus() -> int:
    """Return the number of CPUs that this process may use, by Slurm's grant on this node and the CPU affinity."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return max(1, min(allowed, int(granted))) if granted.isdecimal() else allowed


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """The report and the trackers."""

    report: bool = field(default=True, metadata=RUNTIME)
    """Write the report whenever evaluate or ablations has ended."""
    trackers: Annotated[list[Name], Distinct(empty=True)] | None = field(default=None, metadata=RUNTIME)
    """Trackers that get the figures of every stage: wandb, tensorboard, aim, clearml, comet_ml, dvclive, mlflow,
    swanlab or trackio; []: none; None: wandb if it is set up."""

    def __post_init__(self) -> None:
        check_fields("logging", self)
        members("logging.trackers", self.trackers or (), TRACKERS)


def _runtime(default: Any) -> Any:
    return field(default=default, metadata=RUNTIME)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The server of `r2v serve` and `r2v record`. Its LLM is `teacher`, and `teacher.max_usd` caps all its calls."""

    name: Name = _runtime("default")
    """Name of the server: ledger, logs and recorded sessions are in data/served/<name>."""
    host: Line = _runtime("127.0.0.1")
    """Address to listen on."""
    port: Annotated[int, Range(at_least=0, at_most=65_535)] = _runtime(8484)
    """Port to listen on; 0: any free one."""
    shadow: bool = _runtime(False)
    """Decide at each step and log it, but let the LLM act."""
    llm_down: Literal["error", "small"] = _runtime("error")
    """Answer if the LLM cannot be reached: error (status 503), or the small model within its domain."""
    any_model: bool = _runtime(False)
    """Use the LLM for every model name of clients. Otherwise names that are not R2V's pass unchanged."""
    max_usd_per_key: Positive | None = _runtime(None)
    """Hard cap in USD on the spending of one client key; None: none."""
    max_usd_per_session: Positive | None = _runtime(None)
    """Hard cap in USD on one session; None: none."""
    max_usd_per_day: Positive | None = _runtime(None)
    """Hard cap in USD on one day, in UTC; None: none."""
    idle_seconds: Positive = _runtime(300.0)
    """Longest silence within a reply. A reply as a whole has no limit."""
    drain_seconds: Positive = _runtime(120.0)
    """Seconds for which a reply is still read after its client has left, to learn its usage, else booked as unknown."""

    def __post_init__(self) -> None:
        check_fields("serve", self)
