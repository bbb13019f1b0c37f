"""The planner's rehearsal of TRL's losses takes the same bytes as real tensors."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

from r2v.memory.measured.models import config_of, materialize, skeleton
from r2v.memory.measured.rehearsal import FixedShape, rehearse
from r2v.memory.measured.tracker import Tracker
from r2v.memory.measurement import MeasuredCase
from r2v.policy.rehearsal import in_place_folds
from tests.memory.measuring import SMALL

SHAPE = FixedShape(rows=2, tokens=48, predicted=48)


def real(texts: int, stand_in: bool) -> float:
    """Return the bytes beyond weights of a first micro-batch of TRL's fused loss, on real tensors."""
    model = skeleton(config_of(SMALL), torch.float32).train()
    materialize(model)
    add_fused_lm_head(model)
    ids = torch.zeros(SHAPE.rows * texts, SHAPE.tokens, dtype=torch.long)
    present = torch.ones_like(ids)
    present[0, 0] = 0  # otherwise a CPU sees that no mask is needed
    with Tracker() as tracker, in_place_folds() if stand_in else nullcontext():
        tracker.label("weights", model.parameters())
        weights = tracker.live
        with tracker.span("loss"):
            model(input_ids=ids, attention_mask=present, labels=ids, fused_lm_head=True).loss.backward()
    return tracker.peaks["loss"] - weights


def test_cloning_takes_what_TRLs_loss_takes_on_real_tensors() -> None:
    case = MeasuredCase(code="r2v.policy.rehearsal:bc", action="train", model=SMALL, chunk=4096, single_chunk=True)
    run = rehearse(case, SHAPE)
    seen = max(max(sizes) for mark, sizes in run.trace.items() if mark.batch == 0) - run.static
    assert seen == pytest.approx(real(1, stand_in=True), rel=0.01)


def test_the_stand_in_leaves_out_copies_of_tiles_alone() -> None:
    """A tile of 96 tokens and 700 words in float32, of which TRL's fold for a CPU makes several."""
    tile = 96 * 700 * 4
    assert 2 * tile < real(1, stand_in=False) - real(1, stand_in=True) < 12 * tile


def test_a_pair_is_two_texts_and_the_reference_reads_them_first() -> None:
    """Twice as many rows are saved for backward as in cloning."""
    peaks = []
    for name, chunk in (("bc", 4096), ("preference", 2048)):
        case = MeasuredCase(
            code=f"r2v.policy.rehearsal:{name}",
            action="train",
            model=SMALL,
            chunk=chunk,
            single_chunk=True,
            rank=4,
            frozen=True,
        )
        run = rehearse(case, SHAPE)
        peaks.append(max(max(sizes) for sizes in run.trace.values()) - run.static)
    tile = SHAPE.rows * SHAPE.tokens * 32768 * 4
    assert peaks[1] > peaks[0] and peaks[1] - peaks[0] > 0.4 * min(peaks[0], tile)
