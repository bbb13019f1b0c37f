"""The wall time of a stage under the resources that its job asks for: worlds, models and the LLM, one after another.

    seconds = time_of(work, config, pace, resources)
    seconds.wall

Worlds are stepped by `rollout.workers` threads (auto: the job's CPUs, or one a conversation for worlds that wait), and
never faster than the job's CPUs keep up with; local models take
what `r2v.memory.seconds` estimates of a card; the LLM answers `teacher.max_concurrent` questions at a time. The three
overlap when a stage runs and are added here, so the sum is on the safe side; equal questions, which are answered once,
count each time but for the share that a benchmark's pace gives (`Pace.remembered`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from r2v.config import PHASES, Config
from r2v.envs.pace import Pace
from r2v.errors import InputError, UsageError
from r2v.memory.seconds import StageTokens, estimate, estimate_of
from r2v.memory.shapes import shape_of
from r2v.pipeline.plan.workload import Workload
from r2v.storage.weights import BUNDLED

BUNDLED_SECONDS = 0.004
"""Seconds of a CPU that a question to a bundled model takes, or a row of its training: measured on the desk."""


@dataclass(frozen=True, kw_only=True)
class Allotted:
    """What a job may use."""

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
    """Where the time goes."""

    worlds: float = 0.0
    models: float = 0.0
    """Of acting, scoring and training; not a number where the model's size is not known."""
    llm: float = 0.0
    alone: float = 0.0
    """Of the tasks that change a shared world: one after another on each site set, whoever plays them."""

    @property
    def wall(self) -> float:
        """All of it, one after another, and at least what is played alone."""
        return max(self.worlds + self.models + self.llm, self.alone)

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            worlds=self.worlds + other.worlds,
            models=self.models + other.models,
            llm=self.llm + other.llm,
            alone=self.alone + other.alone,
        )


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
    worlds = max(every / workers_of(config, pace, allotted), every * pace.cpu_share / max(1, allotted.cpus))
    batch = min(config.rollout.batch_size, config.rollout.max_conversations)
    concurrent = min(config.teacher.max_concurrent, config.rollout.max_conversations)
    share = math.ceil(blocks / (1 + allotted.helpers)) / blocks
    return Seconds(
        worlds=share * worlds,
        models=share * (1 - shared * pace.remembered) * _model_seconds(work, config, allotted, batch),
        llm=share * work.llm * _llm_seconds(config, pace) / concurrent,
        alone=alone * unit_seconds(work, config, pace, allotted) / max(1, len(config.rollout.sites)) if alone else 0.0,
    )


def unit_seconds(unit: Workload, config: Config, pace: Pace, allotted: Allotted) -> float:
    """The time of what is kept only as a whole: its steps and questions follow one another."""
    return (
        world_seconds(unit, pace)
        + _model_seconds(unit, config, allotted, batch=1)
        + unit.llm * _llm_seconds(config, pace)
    )


def training_seconds(name: str, config: Config, allotted: Allotted) -> float:
    """The time of a job's training; 0 for one that trains nothing, nan where the model's size is not known."""
    if name not in PHASES:
        return 0.0
    if config.policy.model_name in BUNDLED:
        return _bundled_training(name, config)
    try:
        shape = shape_of(config.policy.model_name)
    except (InputError, UsageError):
        return float("nan")
    return estimate(config, name, shape, card=allotted.card, gpus=max(1, allotted.gpus), checkpointing=True).seconds


def _bundled_training(name: str, config: Config) -> float:
    from r2v.memory.seconds import work_of

    return work_of(config, name, 1).trained / config.policy.max_seq_len * BUNDLED_SECONDS


def _model_seconds(work: Workload, config: Config, allotted: Allotted, batch: int) -> float:
    if not (work.student or work.verifier):
        return 0.0
    if config.policy.model_name in BUNDLED:
        return (work.student + work.verifier) * BUNDLED_SECONDS
    try:
        shape = shape_of(config.policy.model_name)
    except (InputError, UsageError):
        return float("nan")
    tokens = StageTokens(read=work.read + work.written, waves=work.written / batch)
    return estimate_of(tokens, shape, card=allotted.card).seconds


def _llm_seconds(config: Config, pace: Pace) -> float:
    """Of one answer by a direct call, as `cost.llm` models it; a scripted expert answers at once."""
    if config.teacher.provider == "scripted":
        return 0.0
    return config.cost.llm.seconds_per_call + config.cost.llm.seconds_per_token * pace.action_tokens
