"""Recipes of a verifier that `benchmarks/verifier_labels.py` compares: initial weights and losses.

The product starts from the base model and learns each label by cross-entropy. Here a verifier may start from the
clone's weights and learn the better of two actions of a state by the Bradley-Terry loss: -log sigmoid of the better
one's logit less the worse one's.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from r2v.config import Config, Phase
from r2v.evaluation.measures.statistics import FloatArray
from r2v.policy.load import load_policy
from r2v.randomness import generator
from r2v.rollout.model_factory import scoring_encoder
from r2v.verifier.labels import VerifierExample, in_order
from r2v.verifier.model import VerifierModel
from r2v.verifier.train import EncodedExample, encoded, nested, train

SCORED = 100
"""Actions that are scored at once."""
_LOSSES = {"labels": "", "pairs": ", Bradley-Terry", "both": ", cross-entropy + Bradley-Terry"}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A verifier's recipe: labels, initial weights, loss, epochs and learning rate."""

    labels: str
    start: str
    loss: str = "labels"
    """labels: cross-entropy; pairs: Bradley-Terry within a state; both: their sum."""
    epochs: float = 3
    lr: float = 4e-3

    @property
    def name(self) -> str:
        """Name of its row."""
        return f"verifier, {self.labels}, from the {self.start}{_LOSSES[self.loss]}"


def verifier_logits(
    config: Config, arm: Arm, examples: Sequence[VerifierExample], clone: Path, queries: Sequence[VerifierExample]
) -> FloatArray:
    """Return logits (queries,) of a verifier trained on `examples`."""
    policy = config.policy.trained()
    loaded = load_policy(policy, clone if arm.start == "clone" else None, for_training=True, seed=config.seed)
    encode = scoring_encoder(loaded.tokenizer, config.policy, config.inference, ())
    model = VerifierModel(loaded.model)
    phase = replace(config.training.phase("verifier"), num_epochs=arm.epochs, lr=arm.lr)
    rows = encoded(examples, encode)
    if arm.loss == "labels":
        with tempfile.TemporaryDirectory() as folder:
            train(model, rows, phase, seed=config.seed, folder=Path(folder), stop=lambda: False)
    else:
        train_on_pairs(model, in_order(examples), rows, phase, config.seed, cross_entropy=arm.loss == "both")
    ids = [tuple(encode(example.messages, example.action)) for example in queries]
    ordered = sorted(range(len(ids)), key=lambda at: ids[at])  # steps of an episode come together
    logits = np.empty(len(ids))
    with torch.inference_mode():
        for start in range(0, len(ordered), SCORED):
            some = ordered[start : start + SCORED]
            logits[some] = read_together(model, [ids[at] for at in some]).double().numpy()
    return logits


def read_together(model: VerifierModel, rows: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Return logits (rows,) of rows, each read inside a longer one that it is a prefix of, if any."""
    groups = nested(EncodedExample(ids=ids, target=0.0) for ids in rows)
    logits = model.logits_at([group.ids for group in groups], [[len(row.ids) for row in g.rows] for g in groups])
    index = {row.ids: at for at, row in enumerate(row for group in groups for row in group.rows)}
    return logits[[index[ids] for ids in rows]]


def within_states(examples: Sequence[VerifierExample]) -> list[tuple[int, int]]:
    """Return every pair (better, worse) of a state's actions, as indices of `examples`."""
    states: dict[str, list[int]] = defaultdict(list)
    for at, example in enumerate(examples):
        states[example.state_id].append(at)
    return [
        (better, worse)
        for own in states.values()
        for better, worse in permutations(own, 2)
        if examples[better].target > examples[worse].target
    ]


def bradley_terry(logits: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the sum of -log sigmoid(better - worse) over pairs of indices of `logits` (n,)."""
    better, worse = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    return softplus(logits[worse] - logits[better]).sum()


def train_on_pairs(
    model: VerifierModel,
    examples: Sequence[VerifierExample],
    rows: Sequence[EncodedExample],
    phase: Phase,
    seed: int,
    *,
    cross_entropy: bool,
) -> None:
    """Train `model` in place by the Bradley-Terry loss, with `cross_entropy` that of the labels added, each a mean over
    the training set; a batch is `phase.batch_size` tasks with all their actions, which share most of their tokens."""
    tasks: dict[str, list[int]] = defaultdict(list)
    for at, example in enumerate(examples):
        tasks[example.task_id].append(at)
    pairs = within_states(examples)
    names, size = list(tasks), phase.batch_size
    total = max(1, round(phase.num_epochs * len(names) / size))
    climb = max(1, round(phase.warmup_ratio * total))
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, weight_decay=phase.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: min((at + 1) / (climb + 1), (total - at) / (total - climb))
    )
    per_batch = len(names) / size
    model.train()
    for update in range(total):
        epoch, first = divmod(update * size, len(names))
        order = [name for at in (epoch, epoch + 1) for name in generator(seed, "pairs", at).sample(names, len(names))]
        own = sorted(at for name in order[first : first + size] for at in tasks[name])
        logits = read_together(model, [rows[at].ids for at in own])
        local = {at: here for here, at in enumerate(own)}
        here = [(local[better], local[worse]) for better, worse in pairs if better in local]
        loss = bradley_terry(logits, here) * per_batch / len(pairs)
        if cross_entropy:
            targets = logits.new_tensor([rows[at].target for at in own])
            weights = logits.new_tensor([rows[at].weight for at in own])
            every = binary_cross_entropy_with_logits(logits, targets, weight=weights, reduction="sum")
            loss = loss + every * per_batch / len(rows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), phase.grad_clip)
        optimizer.step()
        schedule.step()
    model.eval()
