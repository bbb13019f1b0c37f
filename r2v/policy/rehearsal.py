"""Rehearsals of cloning and preference training: one micro-batch of TRL's own loss, for the memory planner.

TRL computes log-probabilities in tiles: a part of the vocabulary for 4,096 tokens. On a GPU a Triton kernel folds a
tile in place; TRL's folds for a CPU make copies of the tile, of several GiB. `in_place_folds` replaces these: TRL's
loss is unchanged, and the tile is the only copy. On a GPU TRL scores learnt tokens alone, here all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from r2v.memory.measured.rehearsal import Rehearsal

_METRICS = ("log_probs", "entropy", "mean_logits", "is_top1")
"""Outputs of TRL's DPO trainer for each token."""


def bc(run: Rehearsal) -> None:
    """Run the cloning loss on rows whose every token is learnt."""
    from trl.trainer.utils import add_fused_lm_head

    model = run.decoder()
    add_fused_lm_head(_base(model))
    with in_place_folds():
        run.train(model, lambda: _fused(run, model, 1).loss)


def preference(run: Rehearsal) -> None:
    """Run DPO's loss on pairs, with the policy trained and read as the reference; `rows` are pairs."""
    from trl.trainer.utils import add_fused_lm_head

    model = run.decoder()
    add_fused_lm_head(_base(model), outputs=_METRICS)

    def loss() -> Tensor:
        with torch.no_grad():
            reference = _fused(run, model, 2).log_probs.sum(-1)
        chosen, rejected = (_fused(run, model, 2).log_probs.sum(-1) - reference).chunk(2)
        return -torch.nn.functional.logsigmoid(chosen - rejected).mean()

    with in_place_folds():
        run.train(model, loss)


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "peft_config") else model


def _fused(run: Rehearsal, model: Any, texts: int) -> Any:
    ids = run.ids(texts)
    with run.autocast():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True)


@contextmanager
def in_place_folds() -> Iterator[None]:
    """Have TRL's folds for a CPU write into the tile in the block, as its Triton kernels do, and compute nothing."""
    from trl.kernels import chunked_logprob

    folds = chunked_logprob._forward_tile, chunked_logprob._backward_tile
    chunked_logprob._forward_tile = chunked_logprob._backward_tile = _fold_in_place
    try:
        yield
    finally:
        chunked_logprob._forward_tile, chunked_logprob._backward_tile = folds


def _fold_in_place(tile: Tensor, *args: Any, **kwargs: Any) -> None:
    tile.zero_()
