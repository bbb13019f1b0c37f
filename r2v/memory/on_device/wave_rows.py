"""Rows of a local model's waves, chosen from the memory that is free on its device.

    rows = chosen_rows(config.rollout, config.policy, config.inference, device_memory(model.device))
    replies = rows.run(step, tokens=812, total=300, phase="decoder")    # step(rows) answers the wave in such batches

A GPU that waits for launches takes 256 rows in little more time than 64. The bytes of a row, at the longest context of
its wave, are the planner's (`r2v.memory.planner.acting.rows_within`). No result depends on the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
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
_BLOCK = 256  # tokens by which lengths of contexts are told apart


@dataclass(kw_only=True)
class WaveRows:
    """Rows at a time: at most `most`, and as many as `fitting` allows of contexts of so many tokens."""

    most: int
    fitting: Callable[[int], int] = lambda tokens: sys.maxsize

    def run(self, step: Callable[[int], T], *, tokens: int, total: int, phase: str) -> T:
        """Return the result of a wave of `total` rows, the longest of `tokens` tokens. If the GPU runs out of memory,
        later waves have at most the rows that fitted. Raise as `retry_on_oom` does."""
        rows = min(self.most, self.fitting(tokens), total)
        done = retry_on_oom(step, rows, phase=phase, alone=True)
        if done.rows < rows:
            self.most = done.rows
        return done.result


def device_memory(device: torch.device) -> tuple[float, float] | None:
    """Return (free, all) bytes of a GPU, free with the blocks that torch keeps unused; None for another device."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total


def chosen_rows(
    rollout: RolloutConfig,
    policy: PolicyConfig,
    inference: InferenceConfig,
    memory: tuple[float, float] | None,
    phase: Literal["generate", "score"] = "generate",
) -> WaveRows:
    """Return `rollout.batch_size` if set, else at least 1 row by the (free, all) bytes of a GPU that holds the weights;
    without a GPU (None), or if the model cannot be measured, `rollout.rows`."""
    if rollout.batch_size is not None or memory is None:
        return WaveRows(most=rollout.rows)
    free, total = memory
    try:
        with Measuring() as measure:
            lookup = partial(measurement, measure=measure)
            job = decoder_job(policy, inference, _REHEARSED, measure)

            @cache
            def rows_of(blocks: int) -> int:
                prompt = min(blocks * _BLOCK, job.tokens) - job.completion_tokens
                sized, room = replace(job, prompt_tokens=max(1, prompt)), free - prefix_states(total)
                return max(1, rows_within(sized, Machine(memory=total), phase, room, lookup))

            short, rows = rows_of(1), rows_of(-(-job.tokens // _BLOCK))  # from here on all sizes are measured
            per_row = acting_memory(job, phase, rows, lookup).activation / rows
    except (InputError, UsageError) as error:
        logger.warning("  memory plan missing, local batch not chosen: rows=%d reason=%s", rollout.rows, error)
        return WaveRows(most=rollout.rows)
    logger.info(
        "  local batch: phase=%s rows=%d free_gib=%s bytes_per_row=%d tokens=%d rows_of_short_contexts=%d",
        *(phase, rows, gib(free), per_row, job.tokens, short),
    )
    return WaveRows(most=short, fitting=lambda tokens: rows_of(-(-tokens // _BLOCK)))
