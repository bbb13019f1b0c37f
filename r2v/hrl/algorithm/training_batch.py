"""What each network is to learn from an iteration, and the parts of its loss.

A policy's lesson is frozen before anything is updated: advantages, and the log-probabilities that its tokens had under
itself and under the reference. So the actor's steps do not change what the guidance learns, several steps on one lesson
have a ratio to clip, and a run that is cut between two of them goes on with the very same figures. All of it lies on
the CPU; a micro-batch is laid on the network's device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from r2v.config import HierarchicalConfig
from r2v.hrl.algorithm import kl, losses
from r2v.hrl.algorithm.logprobs import Rows, lay, of_completions
from r2v.hrl.algorithm.losses import Per
from r2v.hrl.training.optimizer_step import Part

if TYPE_CHECKING:
    from r2v.hrl.rollout.generator import Segment

COUNTED = 4
"""What a policy's part adds up over tokens: k3, -log pi, clipped ones, all."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a policy learns of N utterances of at most T tokens."""

    advantage: Tensor
    """(N,)."""
    beta: Tensor
    """(N,): weight of the KL."""
    behaviour: Tensor
    """(N, T): log-probabilities under the policy that the tokens were drawn from, 0 behind the last one."""
    reference: Tensor
    """(N, T)."""
    baseline: Tensor | None = None
    """(N, T): what was to be expected at each token."""


def weights_of(lesson: Lesson, mode: str) -> Tensor:
    """c (N, T) or (N, 1): a token's weight in the loss."""
    drift = lesson.beta[:, None] * kl.k1(lesson.behaviour, lesson.reference) if mode == "reward" else None
    return losses.token_weights(lesson.advantage, lesson.baseline, drift, 1.0)


def denominator(said: Sequence[Segment], per: Per) -> float:
    """Utterances or tokens of the whole update, all ranks'."""
    return float(len(said) if per == "sequence" else sum(len(one.tokens) for one in said))


def policy_part(model: Any, device: Any, said: Sequence[Segment], lesson: Lesson, h: HierarchicalConfig) -> Part:
    """The policy's loss, REINFORCE's or PPO's, with the KL in it or in the tokens' weights."""
    weights, whole = weights_of(lesson, h.kl.mode), denominator(said, h.per)

    def part(chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = _laid([said[i] for i in chosen], device)
        logp = of_completions(model, rows, again=bool(h.gradient_checkpointing))
        mask, index = rows.completion, list(chosen)
        behaviour, reference = (spread(table[index], rows, logp) for table in (lesson.behaviour, lesson.reference))
        c = weights[index].to(logp) if weights.shape[1] == 1 else spread(weights[index], rows, logp)
        if h.algorithm == "ppo":
            loss = losses.clipped_loss(logp, behaviour, c, mask, whole, h.clip)
        else:
            loss = losses.policy_loss(logp, c, mask, whole)
        if h.kl.mode == "loss":
            for beta in sorted(set(lesson.beta[index].tolist()) - {0.0}):
                under = mask & (lesson.beta[index] == beta).to(mask.device)[:, None]
                loss = loss + beta * kl.penalty(logp, reference, under, whole)
        return loss, _counted(logp.detach(), behaviour, reference, mask, h.clip)

    return part


def _counted(logp: Tensor, behaviour: Tensor, reference: Tensor, mask: Tensor, clip: float) -> Tensor:
    apart, ratio = kl.k3(logp, reference), (logp - behaviour).exp()
    clipped = (ratio - 1).abs() > clip
    return torch.stack(
        [
            torch.where(mask, apart, 0.0).sum(),
            -torch.where(mask, logp, 0.0).sum(),
            (clipped & mask).sum().to(logp),
            mask.sum().to(logp),
        ]
    )


def _laid(said: Sequence[Segment], device: Any) -> Rows:
    return lay([one.prompt for one in said], [one.tokens for one in said], device=device)


def spread(table: Tensor, rows: Rows, like: Tensor) -> Tensor:
    """(n, T) of completions, each from column 0 on -> where the tokens are in the laid rows, 0 elsewhere."""
    counts = rows.completion.sum(-1)
    present = torch.arange(table.shape[1], device=counts.device) < counts[:, None]
    return torch.zeros_like(like).masked_scatter(rows.completion, table.to(like)[present])


@torch.no_grad()
def logprobs_of(model: Any, device: Any, said: Sequence[Segment], micro: int) -> list[list[float]]:
    """Of every utterance, its tokens' log-probabilities under a model as it is."""

    def some(part: Sequence[Segment]) -> list[list[float]]:
        rows = _laid(part, device)
        flat = of_completions(model, rows)[rows.completion].tolist()
        return _cut(flat, part)

    return by_length(said, micro, some)


def _cut(flat: list[float], said: Sequence[Segment]) -> list[list[float]]:
    ends = torch.tensor([len(one.tokens) for one in said]).cumsum(0).tolist()
    return [flat[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def by_length(
    said: Sequence[Segment], micro: int, some: Callable[[Sequence[Segment]], list[list[float]]]
) -> list[list[float]]:
    """What `some` says of utterances, taken `micro` at a time by length, in the order they were given."""
    order, found = in_length(said, range(len(said))), dict[int, list[float]]()
    for start in range(0, len(order), micro):
        chosen = order[start : start + micro]
        found.update(zip(chosen, some([said[i] for i in chosen]), strict=True))
    return [found[i] for i in range(len(said))]


def in_length(said: Sequence[Segment], rows: Sequence[int]) -> list[int]:
    """The rows, neighbours in length together: little padding."""
    return sorted(rows, key=lambda i: (len(said[i].prompt) + len(said[i].tokens), i))


def padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """(N, T), 0 behind the last of each."""
    table = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.float64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return table


class TokenBaseline(nn.Module):
    """b(o, y_<k): what is to be expected at a token, linear in the state that the token is predicted from."""

    def __init__(self, size: int, like: Tensor) -> None:
        super().__init__()
        self.head = nn.Linear(size, 1).to(like.device, torch.promote_types(like.dtype, torch.float32))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, model: Any, rows: Rows) -> Tensor:
        """(N, T), 0 where no token is a completion's. Nothing flows into the model."""
        whole = model.get_base_model() if hasattr(model, "peft_config") else model
        with torch.no_grad():
            states = whole.base_model(
                input_ids=rows.ids, attention_mask=rows.attention.long(), position_ids=rows.positions, use_cache=False
            ).last_hidden_state
        row, place = rows.completion.nonzero(as_tuple=True)
        flat = self.head(states[row, place - 1].to(self.head.weight.dtype)).squeeze(-1)
        found: Tensor = flat.new_zeros(rows.ids.shape).index_put((row, place), flat)
        return found

    @torch.no_grad()
    def of(self, model: Any, device: Any, said: Sequence[Segment], micro: int) -> list[list[float]]:
        """Of every utterance, what was to be expected at its tokens."""

        def some(part: Sequence[Segment]) -> list[list[float]]:
            rows = _laid(part, device)
            return _cut(self(model, rows)[rows.completion].tolist(), part)

        return by_length(said, micro, some)

    def part(self, model: Any, device: Any, said: Sequence[Segment], advantage: Tensor, per: Per) -> Part:
        """Squared errors to the advantages (N,)."""
        whole = denominator(said, per)

        def part(chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
            rows = _laid([said[i] for i in chosen], device)
            found = self(model, rows)
            return losses.baseline_loss(
                found, advantage[list(chosen)].to(found), rows.completion, whole
            ), found.new_zeros(0)

        return part
