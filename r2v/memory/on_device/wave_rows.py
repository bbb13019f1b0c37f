"""Rows of a local model's waves, chosen from the memory that is free on its device.

    rows = chosen_rows(config.rollout, config.policy, config.inference, device_memory(model.device))
    replies = rows.run(step, tokens=812, total=300, phase="decoder")    # step(rows) answers the wave in such batches

A GPU that waits for kernels to be launched takes 256 rows in little more time than 64. The rows of a wave follow from
its longest context, by the planner's bytes (`r2v.memory.planner.acting.rows_within`); `r2v plan` states those of the
longest context allowed on an empty GPU. A wave that does not fit nevertheless is repeated in halves. No result depends
on the rows, because draws are keyed by request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import torch

from r2v.config import InferenceConfig, PolicyConfig, RolloutConfig
from r2v.errors import InputError, UsageError
from r2v.log import logger
from r2v.memory.configured import decoder_job
from r2v.memory.on_device.retry_on_oom import retry_on_oom
from r2v.memory.planner.acting import acting_memory, rows_within
from r2v.memory.planner.training_job import Machine
from r2v.memory.sizes import gib, prefix_states
from r2v.memory.store import Measuring, measurement

T = TypeVar("T")
_REHEARSED = "r2v.llm.local.rehearsal:memory"
"""Function by which the planner measures a wave, as in the stages' rows of JOBS."""
_SHORTEST = 256
"""Tokens of the shortest contexts that rows are chosen for; each next size is twice as long."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Memory of a GPU in bytes; `free` includes blocks that torch keeps and does not use."""

    free: float
    total: float


@dataclass(kw_only=True)
class WaveRows:
    """Rows at a time, as (tokens, rows for contexts of at most so many tokens), the shortest first; the last tokens are
    infinite."""

    by_tokens: tuple[tuple[float, int], ...]

    @classmethod
    def constant(cls, rows: int) -> WaveRows:
        """Return the same rows for all contexts."""
        return cls(by_tokens=((math.inf, rows),))

    def of(self, tokens: int) -> int:
        """Return the rows for contexts of so many tokens."""
        return next(rows for size, rows in self.by_tokens if tokens <= size)

    def run(self, step: Callable[[int], T], *, tokens: int, total: int, phase: str) -> T:
        """Return the result of a wave of `total` rows, whose longest context has `tokens` tokens. If the GPU runs out
        of memory, contexts of this size and longer ones have at most the rows that fitted from then on. Raise as
        `retry_on_oom` does."""
        rows = min(self.of(tokens), total)
        done = retry_on_oom(step, rows, phase=phase, alone=True)
        if done.rows < rows:
            self.by_tokens = tuple(
                (size, min(fitting, done.rows) if tokens <= size else fitting) for size, fitting in self.by_tokens
            )
        return done.result


def device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of a GPU; None for another device."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return DeviceMemory(free=free + unused, total=total)


def chosen_rows(
    rollout: RolloutConfig,
    policy: PolicyConfig,
    inference: InferenceConfig,
    memory: DeviceMemory | None,
    phase: Literal["generate", "score"] = "generate",
) -> WaveRows:
    """Return `rollout.batch_size` if set, else at least 1 row by the memory of a GPU with the weights in it; without a
    GPU (None), or if the model cannot be measured, `rollout.rows`."""
    if rollout.batch_size is not None or memory is None:
        return WaveRows.constant(rollout.rows)
    with Measuring() as measure:
        lookup = partial(measurement, measure=measure)
        try:
            job = decoder_job(policy, inference, _REHEARSED, measure)
            machine, room = Machine(memory=memory.total), memory.free - prefix_states(memory.total)
            sizes, new = [_SHORTEST << power for power in range(32)], job.completion_tokens
            chosen = {
                size: max(1, rows_within(replace(job, prompt_tokens=max(1, size - new)), machine, phase, room, lookup))
                for size in (*(size for size in sizes if size < job.tokens), job.tokens)
            }
            per_row = acting_memory(job, phase, chosen[job.tokens], lookup).activation / chosen[job.tokens]
        except (InputError, UsageError) as error:
            logger.warning("  memory plan missing, local batch not chosen: rows=%d reason=%s", rollout.rows, error)
            return WaveRows.constant(rollout.rows)
    logger.info(
        "  local batch: phase=%s rows=%d free_gib=%s bytes_per_row=%d tokens=%d rows_of_short_contexts=%d",
        *(phase, chosen[job.tokens], gib(memory.free), per_row, job.tokens, max(chosen.values())),
    )
    return WaveRows(by_tokens=(*list(chosen.items())[:-1], (math.inf, chosen[job.tokens])))
