"""Rows of a wave: by the free memory of a GPU, by the length of the contexts, and fewer once it ran out."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterator

import pytest
import torch

from r2v.config import Config, load
from r2v.errors import EnvironmentFault
from r2v.llm.local.rehearsal import memory as rehearsed
from r2v.memory.configured import decoder_job
from r2v.memory.measurement import MeasuredCase, MeasuredMemory, Moment
from r2v.memory.on_device import wave_rows
from r2v.memory.on_device.wave_rows import WaveRows, chosen_rows, device_memory
from r2v.memory.planner.acting import FREE_SHARE, MOST_ROWS, rows_within
from r2v.memory.planner.training_job import Machine
from r2v.memory.sizes import GIB
from tests.memory.measuring import measure

EACH = 1000.0
"""Bytes of a token of a row."""


def made_up(case: MeasuredCase) -> MeasuredMemory:
    stretches = ("prompt", "choose", "token", "last choose", "read", "held")
    moments = tuple(Moment(stretch=name, name=name, terms=(0, 0, 0, 0, EACH, 0, 0)) for name in stretches)
    return MeasuredMemory(moments=moments, flops=(0.0,) * 7, trained=0, trained_bytes=0, weights=0)


def chosen(memory: tuple[float, float] | None, *overrides: str, config: Config | None = None) -> WaveRows:
    config = config or load(None, list(overrides))
    return chosen_rows(config.rollout, config.policy, config.inference, memory)


@pytest.mark.parametrize(("room", "rows"), [(0.0, 0), (1.0, 1), (1.9, 1), (4.0, 2), (40.1, 20), (1e5, MOST_ROWS)])
def test_half_of_the_free_memory_holds_the_rows_and_all_of_it_a_single_one(room: float, rows: int) -> None:
    config, machine = load(None), Machine(memory=80 * GIB)
    job = decoder_job(config.policy, config.inference, "made:up", measure)
    row = EACH * job.tokens * (1 + machine.fragmentation)
    assert rows_within(job, machine, "generate", (room + 1e-9) * row, made_up) == rows
    if 1 < rows < MOST_ROWS:
        assert rows == math.floor(FREE_SHARE * (room + 1e-9))


def test_more_free_memory_and_shorter_contexts_mean_more_rows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    small, large = (chosen((size * GIB, 8 * GIB)) for size in (0.6, 1.0))
    tokens = load(None).policy.max_seq_len
    assert 1 < small.fitting(tokens) < large.fitting(tokens) < large.fitting(256) == large.most <= MOST_ROWS
    assert small.fitting(tokens) == small.fitting(10 * tokens)
    first, _ = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"  local batch: phase=generate rows={small.fitting(tokens)} free_gib=0.60 bytes_per_row=")
    assert chosen((0, 8 * GIB)).fitting(tokens) == 1


def test_an_explicit_number_and_a_cpu_choose_nothing() -> None:
    assert device_memory(torch.device("cpu")) is None
    assert chosen(None).most == 64
    explicit = chosen((GIB, GIB), "rollout.batch_size=700")
    assert explicit.run(lambda rows: rows, tokens=9, total=900, phase="decoder") == 700


def test_a_model_that_cannot_be_measured_has_the_rows_of_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen((GIB, GIB), "policy.model_name=no/such-model").most == 64
    [warning] = caplog.records
    assert warning.getMessage().startswith("  memory plan missing, local batch not chosen: rows=64 reason=")


def test_the_planner_measures_the_code_that_decodes() -> None:
    module, _, name = wave_rows._REHEARSED.partition(":")
    assert (module, name) == (rehearsed.__module__, rehearsed.__name__)


@pytest.fixture
def own_objects() -> Iterator[None]:
    """What other tests have left is no part of the collections that a failed step begins: they take seconds with it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("own_objects")
def test_a_wave_that_does_not_fit_is_halved_and_so_are_later_ones(caplog: pytest.LogCaptureFixture) -> None:
    def step(rows: int) -> int:
        if rows > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows

    rows = WaveRows(most=32, fitting=lambda tokens: 6400 // tokens)
    assert rows.run(step, tokens=400, total=12, phase="decoder") == 3
    assert rows.run(step, tokens=100, total=2, phase="decoder") == 2 and rows.most == 3
    assert rows.run(step, tokens=6400, total=12, phase="decoder") == 1
    [first, second] = [record.getMessage() for record in caplog.records]
    assert "phase=decoder micro_batch=12 next_micro_batch=6" in first and "next_micro_batch=3" in second
    with pytest.raises(EnvironmentFault, match="out of GPU memory with a micro-batch of 1"):
        WaveRows(most=1).run(lambda rows: step(rows + 3), tokens=1, total=1, phase="decoder")
