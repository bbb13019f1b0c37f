"""The wall time of a stage under the resources that its job asks for: models, environments and the LLM, in turn.

    seconds = time_of(work, config, pace, allotted)
    seconds.wall

Environments are stepped by `rollout.workers` threads (auto: the job's CPUs, or one a conversation for environments that
wait), and never faster than the job's CPUs keep up with; local models take what `r2v.memory.seconds` says of the tokens
counted here; the LLM answers `teacher.max_concurrent` questions at a time. The three overlap when a stage runs and are
added here, so the sum is on the safe side; equal questions, which are answered once, count each time but for the share
that a benchmark's pace gives (`Pace.remembered`).
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
"""Seconds of a CPU that a question to a bundled model takes, or a row of its training: measured on the desk."""


@dataclass(frozen=True, kw_only=True)
class Allotted:
    """Resources of a job."""

    cpus: int = 8
    gpus: int = 0
    helpers: int = 0
    """Jobs of the same kind that play beside it at the same time: they pull blocks of what a stage plays."""
    card: str = ""
    """Type of the GPU; empty, or one that is not known: `r2v.memory.seconds.ASSUMED`."""
    seconds: float | None = None
    """The time limit; None: none."""


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds of the clock, by what they are spent on."""

    model: float = 0.0
    """Acting, scoring and training of local models; nan where the model's size is not known."""
    environment: float = 0.0
    llm: float = 0.0
    alone: float = 0.0
    """Of all these, those of tasks that change a shared world where they take longest: one after another on each site
    set, whoever plays them."""

    @property
    def wall(self) -> float:
        """All three, one after another."""
        return self.model + self.environment + self.llm

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def times(self, count: float) -> Seconds:
        """So often."""
        return Seconds(**{item.name: count * getattr(self, item.name) for item in fields(self)})


def world_seconds(work: Workload, pace: Pace) -> float:
    """What one world after another would take."""
    return work.resets * pace.reset_seconds + work.steps * pace.step_seconds


def workers_of(config: Config, pace: Pace, allotted: Allotted) -> int:
    """Worlds that are stepped at the same time."""
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
    """The time of playing this work, which is so many blocks. `shared`: other methods and thresholds ask the same
    questions in part; `alone`: the share of it that changes a shared world. Each helper takes a whole block at a time:
    10 blocks take 9 processes as long as 2 take one."""
    every = world_seconds(work, pace)
    environment = max(every / workers_of(config, pace, allotted), every * pace.cpu_share / max(1, allotted.cpus))
    batch = min(config.rollout.batch_size, config.rollout.max_conversations)
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
    """The time of work that is kept only as a whole: its steps and questions follow one another."""
    return Seconds(
        model=_model_seconds(unit, config, allotted, batch=1),
        environment=world_seconds(unit, pace),
        llm=_asked_seconds(unit, config, pace),
    )


def _model_seconds(work: Workload, config: Config, allotted: Allotted, batch: int) -> float:
    """Of local models; nan where the model's size is not known."""
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
    """Of the answers that providers give to direct calls, as `cost.llm` models them; a scripted expert answers at
    once."""
    each = config.cost.llm_price.seconds_per_call + config.cost.llm_price.seconds_per_token * pace.action_tokens
    return sum(questions(work, config).values()) * each
