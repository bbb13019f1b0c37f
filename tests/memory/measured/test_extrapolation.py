"""A case measured on shallow models at small shapes has the bytes of the whole model at any shape."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.errors import UsageError
from r2v.memory.measured.extrapolation import measure, shapes_of, sizes_of
from r2v.memory.measured.rehearsal import FixedShape, rehearse
from r2v.memory.measurement import MeasuredCase, terms
from tests.memory.measuring import READER, SMALL
from tests.trust import drawn

HRL, BC = "r2v.hrl.training.rehearsal:memory", "r2v.policy.rehearsal:bc"
LORA: dict[str, Any] = {"rank": 4, "frozen": True, "width": 2}
CASES = {
    "adapters in chunks": MeasuredCase(code=HRL, action="train", model=SMALL, chunk=256, **LORA),
    "completions": MeasuredCase(code=HRL, action="train", model=SMALL, chunk=256, completions=True, **LORA),
    "checkpointed": MeasuredCase(code=HRL, action="train", model=SMALL, chunk=256, checkpoint=True, **LORA),
    "all weights": MeasuredCase(code=HRL, action="train", model=SMALL, chunk=256, single_chunk=True),
    "all weights, fused": MeasuredCase(code=HRL, action="train", model=SMALL, chunk=256, single_chunk=True, fused=True),
    "autocast": MeasuredCase(code=HRL, action="train", model=SMALL, chunk=256, single_chunk=True, autocast=True),
    "read": MeasuredCase(code=HRL, action="read", model=SMALL, chunk=256, frozen=True, width=2),
    "critic": MeasuredCase(code=HRL, action="train", role="critic", model=READER | {"num_hidden_layers": 5}),
    "value": MeasuredCase(code=HRL, action="train", role="value", model=READER),
    "wave": MeasuredCase(code=HRL, action="generate", model=SMALL, sampling="sampled", **LORA),
    "4 bits": MeasuredCase(code=BC, action="train", model=SMALL, chunk=4096, single_chunk=True, four_bit=True, rank=4,
                           frozen=True),
    "sliding and full layers": MeasuredCase(
        code=BC, action="train", chunk=4096, single_chunk=True,
        model=SMALL | {"model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 16},
        **LORA),
    "scores written out": MeasuredCase(
        code=BC, action="train", chunk=4096, single_chunk=True,
        model=SMALL | {"model_type": "gemma2", "head_dim": 16, "num_hidden_layers": 7}, **LORA),
    "experts": MeasuredCase(
        code=BC, action="train", chunk=4096, single_chunk=True,
        model=SMALL | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}, **LORA),
    "short convolutions": MeasuredCase(
        code=BC, action="train", chunk=4096, single_chunk=True,
        model=SMALL | {"model_type": "lfm2", "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
                       "layer_types": ["conv", "full_attention"] * 5, "num_hidden_layers": 10}, **LORA),
}  # fmt: skip
STRETCHES = {"forward": ("fresh", "accumulated"), "backward": ("fresh", "accumulated")}


@pytest.mark.parametrize("name", drawn(list(CASES), 3, "extrapolated"))
def test_each_stretch_peaks_as_in_a_run_of_the_whole_model(name: str) -> None:
    """At a shape and a depth that were not measured, to a thousandth."""
    case, shape = CASES[name], _between(CASES[name])
    measured, whole = measure(case), rehearse(case, shape)
    seen: dict[str, int] = {}
    for mark, sizes in whole.trace.items():
        stretch = STRETCHES.get(mark.action, (mark.action, mark.action))[mark.batch]
        seen[stretch] = max(seen.get(stretch, 0), *sizes)
    predicted = shape.rows * shape.predicted
    for stretch, size in seen.items():
        said = measured.peak((stretch,), rows=shape.rows, tokens=shape.tokens, predicted=predicted).size
        assert said + whole.static == pytest.approx(size, rel=1e-3), stretch
    assert measured.operations(rows=shape.rows, tokens=shape.tokens, predicted=predicted) == pytest.approx(
        whole.flops, rel=1e-3
    )
    assert (measured.trained, measured.weights) == (whole.trained, whole.weights)


def _between(case: MeasuredCase) -> FixedShape:
    tokens = {0: 200, 256: 48 if case.single_chunk else 320}.get(case.chunk, 300)
    return FixedShape(rows=5, tokens=tokens, predicted=tokens // 5 if case.completions else tokens)


def test_a_shape_is_measured_for_each_term_and_no_two_are_alike() -> None:
    for case in CASES.values():
        shapes, check = shapes_of(case)
        rows = [terms(one.rows, one.tokens, one.rows * one.predicted) for one in (*shapes, check)]
        assert len(set(rows)) == len(rows) == (8 if case.completions else 7)
        fits = [one.rows * one.predicted <= case.chunk for one in (*shapes, check)]
        assert not case.chunk or set(fits) == {case.single_chunk}


def test_a_model_that_does_not_run_is_refused_in_one_line() -> None:
    with pytest.raises(
        UsageError, match="^t5: r2v.policy.rehearsal:bc does not run on tensors without data"
    ) as refused:
        measure(MeasuredCase(code=BC, action="train", model={"model_type": "t5"}, chunk=4096, **LORA))
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="^nonsense: "):
        sizes_of({"model_type": "nonsense"})
