"""A rehearsal marks the parts of a model in the order they run, and counts the bytes that real tensors would take."""

from __future__ import annotations

from dataclasses import replace

from r2v.memory.measured.rehearsal import FixedShape, rehearse
from r2v.memory.measurement import MeasuredCase
from tests.memory.measuring import SMALL

CASE = MeasuredCase(
    code="r2v.hrl.training.rehearsal:memory", action="train", model=SMALL, rank=4, frozen=True, width=2, chunk=64
)
SHAPE = FixedShape(rows=2, tokens=64, predicted=64)


def parts(case: MeasuredCase, batch: int = 0) -> list[tuple[str, str, int]]:
    return [(mark.action, mark.unit, mark.index) for mark in rehearse(case, SHAPE, 2).trace if mark.batch == batch]


def test_forward_goes_up_and_backward_comes_down() -> None:
    expected = [
        *(("forward", "", 0), ("forward", "layer", 0), ("forward", "layer", 1), ("forward", "top", 0)),
        *(("forward", "head", 0), ("forward", "head", 1), ("backward", "", 0)),
        *(("backward", "head", 0), ("backward", "head", 1), ("backward", "layer", 1), ("backward", "layer", 0)),
    ]
    assert parts(CASE) == expected
    again = [*expected, ("backward", "embedding", 0)]  # checkpointed layers have inputs that require gradients
    assert parts(replace(CASE, checkpoint=True)) == again, "what is computed again belongs to backward"


def test_trained_embeddings_have_a_backward_of_their_own() -> None:
    assert parts(replace(CASE, rank=0, frozen=False))[-1] == ("backward", "embedding", 0)


def test_the_second_micro_batch_finds_gradients_and_a_brief_run_has_no_other() -> None:
    full = rehearse(replace(CASE, rank=0, frozen=False), SHAPE, 2)
    brief = rehearse(replace(CASE, rank=0, frozen=False), SHAPE, 2, brief=True)
    assert {mark.batch for mark in brief.trace} == {1} and brief.static == brief.weights
    assert full.static - full.weights >= 2 * full.trained_bytes
    for mark, sizes in brief.trace.items():
        assert [size - brief.static for size in sizes] == [size - full.static for size in full.trace[mark]], mark


def test_a_step_needs_a_copy_of_what_is_trained() -> None:
    for fused, copies in ((False, 1), (True, 0)):
        run = rehearse(replace(CASE, rank=0, frozen=False, fused=fused), SHAPE, 2)
        (step,) = [max(sizes) for mark, sizes in run.trace.items() if mark.action == "step"]
        assert abs(step - run.static - (1 + copies) * run.trained_bytes) < 0.01 * run.trained_bytes
