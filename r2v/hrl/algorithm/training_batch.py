"""Training batch of a policy (advantages, behaviour and reference log-probabilities), and its loss.

A batch is computed before any update. The actor's steps therefore do not affect the guidance's batch, several steps on
one batch have a PPO ratio to clip, and a run that was stopped between two steps resumes with the same numbers. Batches
are on the CPU; a micro-batch is moved to the network's device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from r2v.config import HierarchicalConfig
from r2v.hrl.algorithm import kl, losses
from r2v.hrl.algorithm.logprobs import TokenBatch, autocast_of, completion_logprobs, last_states, pad_sequences
from r2v.hrl.algorithm.losses import Per
from r2v.hrl.types import Completion, LossFn

POLICY_STATISTICS = 4
"""Statistics that a policy's loss sums over tokens: k3, -log pi, clipped tokens, tokens."""

IMPORTANCE_CAP = 2.0
"""Largest importance ratio of tokens drawn by another policy (an engine, or the policy before several updates), so that
one unlikely token does not dominate a batch."""


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """Inputs of a policy's loss for N completions of at most T tokens."""

    advantage: Tensor
    """(N,)."""
    beta: Tensor
    """(N,): weight of the KL penalty."""
    behaviour: Tensor
    """(N, T): log-probabilities of the tokens when they were drawn, 0 after the last one; (N, 0): those that the one
    update computes itself (`reads_behaviour`)."""
    reference: Tensor
    """(N, T): log-probabilities under the reference policy."""
    baseline: Tensor | None = None
    """(N, T): the token baseline."""
    weight: Tensor | None = None
    """(N,): share of each completion in the loss; None: 1 each."""
    drawn: Tensor | None = None
    """(N, T): log-probabilities by the engine that drew the tokens; None if the policy itself drew them."""


def reads_behaviour(h: HierarchicalConfig) -> bool:
    """True if a loss needs the drawn tokens' log-probabilities from before the first update, which cost a forward
    pass."""
    return h.updates > 1 or h.kl.mode == "reward"


def token_weights_of(batch: TrainingBatch, kl_mode: str) -> Tensor:
    """Return c (N, T) or (N, 1): a token's weight in the loss, before its completion's share."""
    penalty = batch.beta[:, None] * kl.k1(batch.behaviour, batch.reference) if kl_mode == "reward" else None
    return losses.token_weights(batch.advantage, batch.baseline, penalty)


def denominator(completions: Sequence[Completion], per: Per, weight: Tensor | None = None) -> float:
    """Return the number of completions or tokens of the whole update, over all ranks, weighted by completion."""
    counts = [1 if per == "sequence" else len(completion.tokens) for completion in completions]
    if weight is None:
        return float(sum(counts))
    return float((torch.tensor(counts, dtype=torch.float64) * weight).sum())


def policy_loss_fn(
    model: Any,
    device: Any,
    completions: Sequence[Completion],
    batch: TrainingBatch,
    h: HierarchicalConfig,
    *,
    cap: float = IMPORTANCE_CAP,
) -> LossFn:
    """Return the policy loss, REINFORCE or PPO, with the KL penalty in the loss or in the tokens' weights, and the
    entropy bonus. After the first of several updates the tokens are no longer draws of the policy: PPO corrects by its
    ratio, KL and entropy by the importance ratio, truncated at `cap` (`losses.importance`)."""
    total = denominator(completions, h.per, batch.weight)
    share = torch.ones_like(batch.advantage) if batch.weight is None else batch.weight
    weights = token_weights_of(batch, h.kl.mode) * share[:, None]
    penalties = share * (batch.beta if h.kl.mode == "loss" else 0.0)
    moves = h.updates > 1 or batch.drawn is not None

    def loss_fn(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        tokens, index = _padded([completions[i] for i in rows], device), list(rows)
        logp = completion_logprobs(model, tokens, gradient_checkpointing=bool(h.gradient_checkpointing))
        mask = tokens.completion
        before = batch.behaviour
        behaviour = scatter_to_tokens(before[index], tokens, logp) if before.numel() else logp.detach()
        reference = scatter_to_tokens(batch.reference[index], tokens, logp)
        per_row = weights.shape[1] == 1
        c = weights[index].to(logp) if per_row else scatter_to_tokens(weights[index], tokens, logp)
        drawn = behaviour if batch.drawn is None else scatter_to_tokens(batch.drawn[index], tokens, logp)
        if batch.drawn is not None:
            c = c * losses.importance(behaviour, drawn, mask, cap)
        ratio = losses.importance(logp, drawn, mask, cap) if moves else 1.0
        if h.algorithm == "ppo":
            loss = losses.clipped_loss(logp, behaviour, c, mask, total, h.clip)
        else:
            loss = losses.policy_loss(logp, c, mask, total)
        if penalties.any():
            loss = loss + kl.penalty(logp, reference, mask, total, penalties[index, None].to(logp) * ratio)
        if h.entropy:
            loss = loss + h.entropy * kl.negative_entropy(logp, mask, total, share[index, None].to(logp) * ratio)
        return loss, _policy_statistics(logp.detach(), behaviour, reference, mask, h.clip)

    return loss_fn


def _policy_statistics(logp: Tensor, behaviour: Tensor, reference: Tensor, mask: Tensor, clip: float) -> Tensor:
    divergence, ratio = kl.k3(logp, reference), (logp - behaviour).exp()
    clipped = (ratio - 1).abs() > clip
    return torch.stack(
        [
            torch.where(mask, divergence, 0.0).sum(),
            -torch.where(mask, logp, 0.0).sum(),
            (clipped & mask).sum().to(logp),
            mask.sum().to(logp),
        ]
    )


def _padded(completions: Sequence[Completion], device: Any) -> TokenBatch:
    prompts = [completion.prompt for completion in completions]
    return pad_sequences(prompts, [completion.tokens for completion in completions], device=device)


def scatter_to_tokens(table: Tensor, tokens: TokenBatch, like: Tensor) -> Tensor:
    """Return per-completion rows (n, W), which begin at column 0, moved to the completions' positions in (n, T); 0
    elsewhere."""
    counts = tokens.completion.sum(-1)
    present = torch.arange(table.shape[1], device=counts.device) < counts[:, None]
    return torch.zeros_like(like).masked_scatter(tokens.completion, table.to(like)[present])


@torch.no_grad()
def batch_logprobs(
    model: Any, device: Any, completions: Sequence[Completion], micro_batch_size: int
) -> list[list[float]]:
    """Return each completion's token log-probabilities under the model."""

    def of_some(some: Sequence[Completion]) -> list[list[float]]:
        tokens = _padded(some, device)
        return _split(completion_logprobs(model, tokens)[tokens.completion].tolist(), some)

    return _map_by_length(completions, micro_batch_size, of_some)


def _split(flat: list[float], completions: Sequence[Completion]) -> list[list[float]]:
    ends = torch.tensor([len(completion.tokens) for completion in completions]).cumsum(0).tolist()
    return [flat[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _map_by_length(
    completions: Sequence[Completion],
    micro_batch_size: int,
    function: Callable[[Sequence[Completion]], list[list[float]]],
) -> list[list[float]]:
    """Apply a function to micro-batches of similar length; return its results in the order of the completions."""
    order = sorted_by_length(completions, range(len(completions)))
    results: dict[int, list[float]] = {}
    for start in range(0, len(order), micro_batch_size):
        rows = order[start : start + micro_batch_size]
        results.update(zip(rows, function([completions[i] for i in rows]), strict=True))
    return [results[i] for i in range(len(completions))]


def sorted_by_length(completions: Sequence[Completion], rows: Sequence[int]) -> list[int]:
    """Return the rows by total length, so that micro-batches of neighbours need little padding."""
    return sorted(rows, key=lambda i: (len(completions[i].prompt) + len(completions[i].tokens), i))


def pad_rows(rows: Sequence[Sequence[float]]) -> Tensor:
    """Return a table (N, T) in float64, 0 after the end of each row."""
    table = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.float64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return table


class TokenBaseline(nn.Module):
    """Token baseline b(o, y_<k), linear in the hidden state that predicts the token."""

    def __init__(self, size: int, like: Tensor) -> None:
        super().__init__()
        self.head = nn.Linear(size, 1).to(like.device, torch.promote_types(like.dtype, torch.float32))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, model: Any, tokens: TokenBatch) -> Tensor:
        """Return the baseline (N, T), 0 outside completions. No gradient flows into the model."""
        causal = model.get_base_model() if hasattr(model, "peft_config") else model
        with torch.no_grad(), autocast_of(causal):
            states = last_states(causal, tokens)
        row, column = tokens.completion.nonzero(as_tuple=True)
        flat = self.head(states[row, column - 1].to(self.head.weight.dtype)).squeeze(-1)
        values: Tensor = flat.new_zeros(tokens.ids.shape).index_put((row, column), flat)
        return values

    @torch.no_grad()
    def of(
        self, model: Any, device: Any, completions: Sequence[Completion], micro_batch_size: int
    ) -> list[list[float]]:
        """Return each completion's baseline at its tokens."""

        def of_some(some: Sequence[Completion]) -> list[list[float]]:
            tokens = _padded(some, device)
            return _split(self(model, tokens)[tokens.completion].tolist(), some)

        return _map_by_length(completions, micro_batch_size, of_some)

    def loss_fn(
        self, model: Any, device: Any, completions: Sequence[Completion], advantage: Tensor, per: Per
    ) -> LossFn:
        """Return the loss: squared errors from the advantages (N,)."""
        total = denominator(completions, per)

        def loss_fn(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
            tokens = _padded([completions[i] for i in rows], device)
            predicted = self(model, tokens)
            target = advantage[list(rows)].to(predicted)
            return losses.baseline_loss(predicted, target, tokens.completion, total), predicted.new_zeros(0)

        return loss_fn
