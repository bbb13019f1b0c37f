"""Verifier training: soft-target cross-entropy with equal weight per task, resumable bit for bit.

The state of the loop is the weights, the optimizer and the number of updates: the examples of an update, its learning
rate and its dropout are functions of (seed, update). So an interrupted and resumed run ends in the same weights, and
the size of micro-batches decides only memory. Ranks (`r2v.distributed`) share the micro-batches of an update and sum
their gradients.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from r2v import distributed
from r2v.config import Phase
from r2v.errors import EmptyResult, Interrupted, UsageError
from r2v.progress import Progress
from r2v.randomness import generator, seed_of
from r2v.storage import checkpoint
from r2v.storage.checkpoint import LATEST
from r2v.verifier.labels import VerifierExample, balanced, in_order
from r2v.verifier.model import Encode, VerifierModel

if TYPE_CHECKING:
    from r2v.memory.measured.rehearsal import Rehearsal

VERIFIER_CHECKPOINT = LATEST
"""Link in a verifier's folder to its newest checkpoint."""
_STATE = "state.pt"


@dataclass(frozen=True, kw_only=True)
class EncodedExample:
    """Example as token ids; the weights of all examples average 1."""

    ids: tuple[int, ...]
    target: float
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NestedRows:
    """Rows that are prefixes of one another, read in one pass: the model is causal, so the state at the end of a
    shorter row is the same inside the longer one."""

    ids: tuple[int, ...]
    rows: tuple[EncodedExample, ...]
    """Each is scored at its own last token."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of a training: the number of updates and the loss of each."""

    updates: int
    losses: tuple[float, ...]


def encoded(examples: Iterable[VerifierExample], encode: Encode) -> list[EncodedExample]:
    """Return one row per example, sorted by `in_order`, with equal weight per task.

    Raise EmptyResult, with the counts, unless there are both good and bad actions.
    """
    ordered = balanced(in_order(examples))
    good = sum(example.good for example in ordered)
    if not 0 < good < len(ordered):
        raise EmptyResult(
            f"verifier examples: {good} good actions, {len(ordered) - good} bad; both are "
            "needed, add a label source (verifier.label_sources) or tasks (verifier.num_tasks)"
        )
    scale = len(ordered) / sum(example.weight for example in ordered)
    return [
        EncodedExample(
            ids=tuple(encode(example.messages, example.action)), target=example.target, weight=example.weight * scale
        )
        for example in ordered
    ]


def nested(rows: Iterable[EncodedExample]) -> list[NestedRows]:
    """Return the rows, each merged into a row that it is a prefix of, in the order of their ids."""
    groups: list[NestedRows] = []
    for row in sorted(rows, key=lambda row: (row.ids, row.target, row.weight), reverse=True):
        if groups and groups[-1].ids[: len(row.ids)] == row.ids:
            groups[-1] = NestedRows(ids=groups[-1].ids, rows=(*groups[-1].rows, row))
        else:
            groups.append(NestedRows(ids=row.ids, rows=(row,)))
    return groups[::-1]


def train(
    model: VerifierModel,
    rows: Sequence[EncodedExample],
    phase: Phase,
    *,
    seed: int,
    folder: Path,
    stop: Callable[[], bool] = lambda: False,
    what: str = "",
) -> Trained:
    """Train `model` in place on `rows`, from the newest checkpoint in `folder`, if any, to a final one there. The batch
    size counts nested rows.

    `stop` is called after every update; if it returns True, a checkpoint is written and Interrupted raised. `what`:
    name of the progress. Raise UsageError, before stepping or saving, if a loss, gradient or weight is not finite.
    """
    batch = phase.batch_size * phase.gradient_accumulation_steps
    sequences = nested(rows)
    total, scale = max(1, math.ceil(phase.num_epochs * len(sequences) / batch)), len(sequences) / len(rows) / batch
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _optimizer(model, parameters, phase)
    losses = _resume(folder, model, optimizer, what or "verifier")
    model.train()
    with Progress(what, total, len(losses)) as bar:
        for update in range(len(losses), total):
            for group in optimizer.param_groups:
                group["lr"] = phase.lr * _rate(update, total, phase.warmup_ratio)
            own = (distributed.rank(),) if distributed.rank() else ()
            torch.manual_seed(seed_of(seed, "verifier-dropout", update, *own))
            chosen = [sequences[index] for index in _positions(update, batch, len(sequences), seed)]
            losses.append(_sum_over_ranks(parameters, _accumulate(model, chosen, phase.batch_size, scale)))
            norm = torch.nn.utils.clip_grad_norm_(parameters, phase.grad_clip)
            _require_finite(phase, update, loss=losses[-1], **{"gradient's norm": float(norm)})
            optimizer.step()
            optimizer.zero_grad()
            bar.advance(loss=round(losses[-1], 6))
            stopping = stop()
            if stopping or (update + 1) % phase.save_steps == 0 or update + 1 == total:
                _require_finite(phase, update, weights=float(sum(p.detach().abs().sum() for p in parameters)))
                _checkpoint(folder, model, optimizer, losses)
            if stopping:
                raise Interrupted(
                    f"verifier: stopped after update {update + 1} of {total}, which "
                    f"{folder / VERIFIER_CHECKPOINT} holds; the same command continues"
                )
    model.eval()
    return Trained(updates=total, losses=tuple(losses))


def _optimizer(model: VerifierModel, parameters: Sequence[torch.nn.Parameter], phase: Phase) -> torch.optim.Optimizer:
    """Return the phase's AdamW. That of bitsandbytes keeps an embedding's moments in 32 bits, as TRL's trainer does."""
    if phase.optimizer is None:
        return torch.optim.AdamW(parameters, lr=phase.lr, weight_decay=phase.weight_decay)
    bitsandbytes: Any = importlib.import_module("bitsandbytes.optim")  # untyped

    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager = bitsandbytes.GlobalOptimManager.get_instance()
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    optimizer: torch.optim.Optimizer = bitsandbytes.AdamW(
        parameters,
        lr=phase.lr,
        weight_decay=phase.weight_decay,
        optim_bits=8,
        is_paged=phase.optimizer == "paged_adamw_8bit",
    )
    return optimizer


def _positions(update: int, batch: int, count: int, seed: int) -> Iterator[int]:
    """Yield the indices of one update's sequences: its part of an endless sequence of keyed permutations."""
    for position in range(update * batch, (update + 1) * batch):
        epoch, index = divmod(position, count)
        if position == update * batch or index == 0:
            order = generator(seed, "verifier-order", epoch).sample(range(count), count)
        yield order[index]


def _rate(update: int, total: int, warmup_ratio: float) -> float:
    """Return the share of the peak learning rate: linear warmup, then linear decay to just above 0."""
    climb = math.ceil(warmup_ratio * total)
    return (update + 1) / (climb + 1) if update < climb else (total - update) / (total - climb)


def _accumulate(model: VerifierModel, chosen: Sequence[NestedRows], micro: int, scale: float) -> float:
    """Accumulate the gradient of the weighted loss times `scale` (1 / rows of an average update) in micro-batches of
    similar length, and return the loss. Ranks take micro-batches in turn."""
    by_length = sorted(chosen, key=lambda sequence: len(sequence.ids))
    whole = 0.0
    for start in range(distributed.rank() * micro, len(chosen), distributed.ranks() * micro):
        part = by_length[start : start + micro]
        ends = [[len(row.ids) for row in sequence.rows] for sequence in part]
        logits = model.logits_at([sequence.ids for sequence in part], ends)
        loss = _loss(logits, [row for sequence in part for row in sequence.rows]) * scale
        loss.backward()  # type: ignore[no-untyped-call]
        whole += loss.item()
    return whole


def _sum_over_ranks(parameters: Sequence[torch.nn.Parameter], loss: float) -> float:
    """Sum every parameter's gradient over all ranks, with equal bits on each, and return the sum of the losses."""
    if distributed.ranks() == 1:
        return loss
    import torch.distributed as group

    for parameter in parameters:
        if parameter.grad is None:  # a rank without a part of this update
            parameter.grad = torch.zeros_like(parameter)
        group.all_reduce(parameter.grad)
    whole = torch.tensor(loss, dtype=torch.float64, device=parameters[0].device)
    group.all_reduce(whole)
    return whole.item()


def _loss(logits: Tensor, rows: Sequence[EncodedExample]) -> Tensor:
    targets = logits.new_tensor([row.target for row in rows])
    weights = logits.new_tensor([row.weight for row in rows])
    return binary_cross_entropy_with_logits(logits, targets, weight=weights, reduction="sum")


def rehearse(run: Rehearsal) -> None:
    """Run one micro-batch of the loss on fixed shapes for the memory planner, with one score at the end of each row."""
    model = VerifierModel(run.decoder())
    run.count(model.head)
    count, tokens = run.shape.rows, run.shape.tokens
    rows = [EncodedExample(ids=(), target=1.0, weight=1.0)] * count

    def loss() -> Tensor:
        ends = torch.full((count,), tokens)
        with run.autocast():
            return _loss(model(run.ids(), ends, torch.arange(count), ends), rows)

    run.train(model, loss)


def _require_finite(phase: Phase, update: int, **figures: float) -> None:
    """Raise UsageError if a figure is not finite: a restart would end the same way."""
    if not all(map(math.isfinite, figures.values())):
        raise UsageError(
            f"verifier: training has diverged: in update {update + 1} "
            + " and ".join(f"its {name} is {value:g}" for name, value in figures.items())
            + f"; nothing is published. Lower training.verifier.lr (now {phase.lr:g}), training.grad_clip "
            f"(now {phase.grad_clip:g}) or training.verifier.weight_decay (now {phase.weight_decay:g})"
        )


def _checkpoint(folder: Path, model: VerifierModel, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    if distributed.rank():  # all have the same weights
        return
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    newest = folder / f"checkpoint-{len(losses)}"
    with checkpoint.saving(newest, 3 * sum(value.numel() * value.element_size() for value in trained.values())):
        newest.mkdir(parents=True, exist_ok=True)
        torch.save({"model": trained, "optimizer": optimizer.state_dict(), "losses": losses}, newest / _STATE)
        checkpoint.seal(newest)
        checkpoint.point(folder, newest)
    checkpoint.forget(folder, len(losses))


def _resume(folder: Path, model: VerifierModel, optimizer: torch.optim.Optimizer, what: str) -> list[float]:
    """Load the newest whole checkpoint, if any, and return the losses of its updates. Raise InputError if it belongs to
    another model."""
    newest = checkpoint.newest_whole(folder, what) if distributed.rank() == 0 else None
    distributed.wait_for_all()
    if distributed.rank() and (folder / LATEST).exists():
        newest = (folder / LATEST).resolve()
    if newest is None:
        return []
    with checkpoint.resuming(newest):
        state: dict[str, Any] = torch.load(io.BytesIO((newest / _STATE).read_bytes()), weights_only=True)
        model.load_state_dict(state["model"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        losses: list[float] = state["losses"]
    return losses
