"""Sampling: the next token of every row, by inverse CDF from a keyed uniform, with what is recorded of it.

A draw belongs to its request and not to its place in a batch. Log-probabilities are taken in float64 and compared after
rounding to 1e-9, so that the order of sums in a matrix product (1e-15 in float64) decides nothing. Both decoders draw
here: the one of this process (`r2v.llm.local.decode`) and a serving engine (`r2v.llm.engines.keyed`), whose Python has
no r2v and loads this file by its path: it imports nothing but torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_GRAIN = 1e9
_LIKELIEST = 512
"""Tokens that are ranked first: the nucleus at .95 of a trained model's next token has tens."""


class Chosen(NamedTuple):
    """The next token of every row, its log-probability and the entropy (nats) of the distribution it came from, both
    untempered, and by how much that distribution's likeliest token is likelier than the second; each (B,)."""

    tokens: Tensor
    logprobs: Tensor
    entropies: Tensor
    margins: Tensor


def choose(logits: Tensor, temperatures: Sequence[float], top_ps: Sequence[float], uniforms: Sequence[float]) -> Chosen:
    """Draw from logits (B, V). A row of temperature 0 takes the likeliest token, the first of equals, and needs no
    uniform."""
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    grained = torch.round(logprobs * _GRAIN) / _GRAIN
    chosen = grained.argmax(dim=-1)
    sampled = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if sampled:

        def column(values: Sequence[float]) -> Tensor:
            picked = [values[row] for row in sampled]
            return torch.tensor(picked, dtype=torch.float64, device=logits.device)

        cut = [position for position, row in enumerate(sampled) if top_ps[row] < 1]
        kept = nucleus(grained[sampled], column(temperatures), column(top_ps), cut)
        chosen[sampled] = inverse_cdf(kept, column(uniforms))
    return Chosen(chosen, logprobs.gather(-1, chosen[:, None])[:, 0], entropy(logprobs), margin(logprobs))


def nucleus(logprobs: Tensor, temperature: Tensor, top_p: Tensor, rows: Sequence[int]) -> Tensor:
    """The tempered distribution, of `rows` cut to its nucleus: the likeliest tokens, ties by id, up to the one with
    which their mass reaches `top_p`. The others have a `top_p` of 1, which spares a sort of the vocabulary.

    logprobs: (B, V) nats; temperature, top_p: (B,), temperature above 0. Returns (B, V), rows summing to 1.
    """
    tempered = torch.softmax(logprobs / temperature[:, None], dim=-1)
    if rows:
        tempered[rows] = _cut(tempered[rows], top_p[rows])
    return tempered


def _cut(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """Cut rows (B, V) to their nuclei. The likeliest few hundred tokens decide for a trained model, which spares a sort
    of the vocabulary."""
    ranked = probabilities.topk(min(_LIKELIEST, probabilities.shape[-1]), dim=-1).values
    inside = _inside(ranked, top_p)
    if bool(inside[:, -1].any()):  # a nucleus is wider than these tokens
        ranked = probabilities.sort(dim=-1, descending=True).values
        inside = _inside(ranked, top_p)
    size = inside.sum(dim=-1, keepdim=True)
    least = ranked.gather(-1, size - 1)
    above, level = probabilities > least, probabilities == least
    kept = above | (level & (level.cumsum(dim=-1) <= size - above.sum(dim=-1, keepdim=True)))
    cut = torch.where(kept, probabilities, 0.0)
    return cut / cut.sum(dim=-1, keepdim=True)


def _inside(ranked: Tensor, top_p: Tensor) -> Tensor:
    """True for the ranks whose mass before them is below `top_p`, and always for the first."""
    inside = ranked.cumsum(dim=-1) - ranked < top_p[:, None] - 1.0 / _GRAIN
    inside[:, 0] = True
    return inside


def inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The token in whose slice of [0, 1) the uniform falls, slices in order of token id.

    probabilities: (B, V); uniforms: (B,). Returns (B,); a token of probability 0 is never returned.
    """
    edges = probabilities.cumsum(dim=-1)
    drawn = torch.searchsorted(edges, (uniforms * edges[:, -1])[:, None], right=True)[:, 0]
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(dim=-1)
    return torch.minimum(drawn, last)


def margin(logprobs: Tensor) -> Tensor:
    """The likeliest token's probability less the second's, (B,), of logprobs (B, V); 1 where there is but one token."""
    if logprobs.shape[-1] == 1:
        return torch.ones_like(logprobs[:, 0])
    first, second = logprobs.topk(2, dim=-1).values.exp().unbind(-1)
    return first - second


def entropy(logprobs: Tensor) -> Tensor:
    """H = -sum p ln p in nats over the last axis; tokens of probability 0 add nothing.

    >>> float(entropy(torch.full((4,), .25).log()).__round__(6))
    1.386294
    """
    return -(logprobs.exp() * logprobs.clamp_min(torch.finfo(logprobs.dtype).min)).sum(dim=-1)
