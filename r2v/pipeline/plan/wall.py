"""Wall time of a stage under its job's resources: models, environments and the LLM, one after another.

    seconds = time_of(work, config, pace, allotted)
    seconds.wall

Environments are stepped by `rollout.workers` threads (auto: the job's CPUs, or one a conversation for environments that
wait), within the capacity of the job's CPUs; local models take the time of `r2v.memory.seconds` for the tokens counted
here; the LLM answers `teacher.max_concurrent` requests at a time. The three overlap in a stage and are added here, so
the sum is conservative; equal requests, answered once, count each time but for the pace's share (`Pace.remembered`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from r2v.config import Config
from r2v.envs.pace import Pace
from r2v.errors import InputError, UsageError
from r2v.memory.models import counted
from r2v.memory.seconds import StageTokens, seconds_of
from r2v.pipeline.plan.price import questions
from r2v.pipeline.plan.workload import Workload
from r2v.storage.weights import BUNDLED

BUNDLED_SECONDS = 0.004
"""CPU seconds of a request to a bundled model, or of a row of its training: measured on the desk."""


@dataclass(frozen=True, kw_only=True)
class Allotted:
    """Resources of a job."""

    cpus: int = 8
    gpus: int = 0
    helpers: int = 0
    """Parallel jobs that play blocks of the stage."""
    card: str = ""
    """Type of the GPU; an empty or unknown one is taken as `r2v.memory.seconds.ASSUMED`."""
    seconds: float | None = None
    """Time limit; None for none."""


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Wall-clock seconds of models, environments and the LLM."""

    model: float = 0.0
    """Acting, scoring and training of local models; nan for a model of unknown size."""
    environment: float = 0.0
    llm: float = 0.0
    alone: float = 0.0
    """Seconds, among these, of tasks that change a shared world, if they take longest: played one after another on each
    site set, by any number of processes."""

    @property
    def wall(self) -> float:
        """Sum of the three."""
        return self.model + self.environment + self.llm

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def times(self, count: float) -> Seconds:
        """Return `count` times these seconds."""
        return Seconds(**{item.name: count * getattr(self, item.name) for item in fields(self)})


def world_seconds(work: Workload, pace: Pace) -> float:
    """Return the seconds of the worlds, one after another."""
    return work.resets * pace.reset_seconds + work.steps * pace.step_seconds


def workers_of(config: Config, pace: Pace, allotted: Allotted) -> int:
    """Return the number of worlds stepped in parallel."""
    threads = config.rollout.world_threads(waiting=pace.cpu_share < 1, cpus=allotted.cpus)
    return min(threads, config.rollout.max_conversations)


def time_of(
    work: Workload,
    config: Config,
    pace: Pace,
    allotted: Allotted,
    *,
    shared: bool = False,
    blocks: int = 1,
    alone: float = 0.0,
) -> Seconds:
    """Return the time of this work in so many blocks. `shared`: other methods and thresholds send part of the same
    requests; `alone`: share that changes a shared world. A helper leases whole blocks: 10 blocks take 9 processes as
    long as 2 take one."""
    every = world_seconds(work, pace)
    environment = max(every / workers_of(config, pace, allotted), every * pace.cpu_share / max(1, allotted.cpus))
    batch = min(config.rollout.rows, config.rollout.max_conversations)
    concurrent = min(config.teacher.max_concurrent, config.rollout.max_conversations)
    share = math.ceil(blocks / (1 + allotted.helpers)) / blocks
    together = Seconds(
        model=share * (1 - shared * pace.remembered) * _model_seconds(work, config, allotted, batch),
        environment=share * environment,
        llm=share * _asked_seconds(work, config, pace) / concurrent,
    )
    if not alone:
        return together
    in_turn = unit_seconds(work, config, pace, allotted).times(alone / max(1, len(config.rollout.sites)))
    return replace(in_turn, alone=in_turn.wall) if in_turn.wall > together.wall else together


def unit_seconds(unit: Workload, config: Config, pace: Pace, allotted: Allotted) -> Seconds:
    """Return the time of work that is stored only as a whole: its steps and requests follow one another."""
    return Seconds(
        model=_model_seconds(unit, config, allotted, batch=1),
        environment=world_seconds(unit, pace),
        llm=_asked_seconds(unit, config, pace),
    )


def _model_seconds(work: Workload, config: Config, allotted: Allotted, batch: int) -> float:
    """Return the seconds of local models; nan for a model of unknown size."""
    if config.policy.is_api or not (work.student or work.verifier or work.trained):
        return 0.0
    if config.policy.model_name in BUNDLED:
        return (work.student + work.verifier + work.trained / config.policy.max_seq_len) * BUNDLED_SECONDS
    try:
        model = counted(config.policy.model_name)
    except (InputError, UsageError):
        return math.nan
    tokens = StageTokens(trained=work.trained, read=work.read + work.written, waves=work.written / batch)
    return seconds_of(tokens, model, card=allotted.card, gpus=max(1, allotted.gpus), checkpointing=True)


def _asked_seconds(work: Workload, config: Config, pace: Pace) -> float:
    """Return the seconds of providers' replies to direct calls, by `cost.llm`; a scripted expert takes none."""
    each = config.cost.llm_price.seconds_per_call + config.cost.llm_price.seconds_per_token * pace.action_tokens
    return sum(questions(work, config).values()) * each
