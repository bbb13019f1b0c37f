"""Rehearsals of hierarchical training: one micro-batch of each of its networks on fixed shapes, for the memory planner.

Each function runs the networks and losses of this package on the tensors of a `r2v.memory.measured` rehearsal.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from r2v.hrl.algorithm.critic import DoubleCritic, MeanPooledEncoder, Text
from r2v.hrl.algorithm.logprobs import TokenBatch, logprobs_at, set_autocast
from r2v.hrl.models.encoders import HEAD_WIDTHS, ValueModel
from r2v.hrl.parallel.base_model import fused_adapters
from r2v.llm.local.rehearsal import generate

if TYPE_CHECKING:
    from r2v.memory.measured.rehearsal import Rehearsal


def memory(run: Rehearsal) -> None:
    """Run one micro-batch of a case's role, or a wave of its completions."""
    if run.case.action == "generate":
        # peft has a layer of its own for 4-bit matrices, which is not fused
        generate(run, nullcontext if run.case.four_bit else fused_adapters)
    else:
        {"language": language, "critic": critic, "value": value}[run.case.role](run)


def language(run: Rehearsal) -> None:
    """Train on log-probabilities of the policy or the guidance, or read them, as for the reference."""
    model = run.decoder()
    if run.case.autocast:
        set_autocast(model)

    def logprobs() -> Tensor:
        ids, (row, column) = run.ids(), run.positions()
        present = torch.ones_like(ids, dtype=torch.bool)
        batch = TokenBatch(ids=ids, attention=present, positions=present.cumsum(-1) - 1, completion=present)
        return logprobs_at(model, batch, row, column, run.case.chunk)

    if run.case.action == "read":
        run.read(model, logprobs)
    else:
        run.train(model, lambda: logprobs().mean())


def critic(run: Rehearsal) -> None:
    """Train the double critic on values of states and utterances, or read them."""
    backbone, size = _backbone(run)
    with run.empty():
        model = DoubleCritic("meta", backbone, size, HEAD_WIDTHS)
    run.place(model)

    def loss() -> Tensor:
        values = model(_text(run), _text(run))
        return values.q.mean() + values.v.mean() + values.floor.mean()  # type: ignore[no-any-return]

    if run.case.action == "read":
        run.read(model, loss)
    else:
        run.train(model, loss)


def value(run: Rehearsal) -> None:
    """Train the value model on predictions of hints."""
    backbone, size = _backbone(run)
    with run.empty():
        model = ValueModel(backbone, size, HEAD_WIDTHS)
    run.place(model)
    run.train(model, lambda: model(*_text(run)).mean())


def _backbone(run: Rehearsal) -> tuple[nn.Module, int]:
    encoder = run.bare()
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return MeanPooledEncoder(encoder), encoder.config.hidden_size


def _text(run: Rehearsal) -> Text:
    ids = run.ids()
    return ids, torch.ones_like(ids, dtype=torch.bool)
