"""The planner's rehearsal of hierarchical training measures the memory that its own networks take."""

from __future__ import annotations

from dataclasses import replace

import torch

from r2v.hrl.models.encoders import HEAD_WIDTHS
from r2v.hrl.parallel.micro_batch import REHEARSED
from r2v.memory.measured.rehearsal import FixedShape, rehearse
from r2v.memory.measurement import MeasuredCase
from r2v.pipeline.jobs import job
from tests.memory.measuring import READER, SMALL

SHAPE = FixedShape(rows=2, tokens=64, predicted=64)


def test_the_row_of_the_stage_names_what_the_trainer_plans_with() -> None:
    assert job("hierarchical").memory == REHEARSED


def test_a_critic_has_four_heads_and_a_floor_and_a_value_model_one() -> None:
    def head(inside: int) -> int:
        widths = [inside, *HEAD_WIDTHS, 1]
        return sum(a * b + b for a, b in zip(widths, widths[1:], strict=False))

    critic, value = (
        rehearse(MeasuredCase(code=REHEARSED, action="train", role=role, model=READER), SHAPE).trained
        for role in ("critic", "value")
    )
    assert critic - value == 2 * head(128) + 2 * head(64)


def test_autocast_is_the_one_of_trained_weights() -> None:
    """Whole float32 weights compute in bfloat16 if the case says so: activations are halved."""
    exact, mixed = (
        rehearse(
            MeasuredCase(code=REHEARSED, action="train", model=SMALL, chunk=1024, single_chunk=True, autocast=autocast),
            FixedShape(rows=8, tokens=128, predicted=128),
        )
        for autocast in (False, True)
    )
    assert mixed.peak < exact.peak and mixed.static == exact.static


def test_a_wave_has_fused_adapters_as_in_training() -> None:
    """Except on 4-bit matrices, for which peft has a layer of its own."""
    for four_bit, fuses in ((False, True), (True, False)):
        case = MeasuredCase(
            code=REHEARSED, action="generate", model=SMALL, rank=4, frozen=True, sampling="sampled", four_bit=four_bit
        )
        wave, unfused = (rehearse(one, SHAPE).peak for one in (case, replace(case, code=job("evaluate").memory)))
        assert (wave != unfused) is fuses


def test_a_reference_saves_nothing() -> None:
    read = rehearse(MeasuredCase(code=REHEARSED, action="read", model=SMALL, frozen=True, chunk=64), SHAPE)
    trained = rehearse(MeasuredCase(code=REHEARSED, action="train", model=SMALL, frozen=True, rank=4, chunk=64), SHAPE)
    assert read.trained == 0 and read.peak - read.static < (trained.peak - trained.static) / 2
    assert not torch.is_inference_mode_enabled()
