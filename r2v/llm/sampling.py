"""Sampling: the next token of every row, by inverse CDF from a keyed uniform, with its log-probability and entropy.

A draw depends on its request and not on its row in the batch. Log-probabilities are computed in float64 and compared
after rounding to 1e-9, so that the order of sums in a matrix product (1e-15 in float64) changes no token. Both decoders
sample here: the local one (`r2v.llm.local.decode`) and a serving engine (`r2v.llm.engines.keyed`). The engine's Python
has no r2v and loads this file by path, so it imports only torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_GRAIN = 1e9
"""Inverse of the rounding step of log-probabilities."""
_LIKELIEST = 512
"""Tokens ranked first: the nucleus at .95 of a trained model's next token has tens."""


class Chosen(NamedTuple):
    """The next token of every row, with its log-probability and the entropy (both in nats) and margin (probability of
    the likeliest token minus that of the second) of the untempered distribution; each (B,)."""

    tokens: Tensor
    logprobs: Tensor
    entropies: Tensor
    margins: Tensor


def choose(logits: Tensor, temperatures: Sequence[float], top_ps: Sequence[float], uniforms: Sequence[float]) -> Chosen:
    """Sample from logits (B, V). Rows of temperature 0 take the likeliest token, the lowest id among equals, and ignore
    their uniform."""
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    grained = torch.round(logprobs * _GRAIN) / _GRAIN
    chosen = grained.argmax(dim=-1)
    sampled = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if sampled:
        columns = [[values[row] for row in sampled] for values in (temperatures, top_ps, uniforms)]
        temperature, top_p, uniform = torch.tensor(columns, dtype=torch.float64, device=logits.device)
        cut = [position for position, row in enumerate(sampled) if top_ps[row] < 1]
        chosen[sampled] = inverse_cdf(nucleus(grained[sampled], temperature, top_p, cut), uniform)
    return Chosen(chosen, logprobs.gather(-1, chosen[:, None])[:, 0], entropy(logprobs), margin(logprobs))


def nucleus(logprobs: Tensor, temperature: Tensor, top_p: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the tempered distribution, with `rows` cut to their nucleus: the likeliest tokens, ties by id, up to the
    first whose cumulative mass reaches `top_p`. Other rows have `top_p` 1 and stay whole.

    logprobs: (B, V) nats; temperature, top_p: (B,), temperature above 0. Returns (B, V), rows summing to 1.
    """
    tempered = torch.softmax(logprobs / temperature[:, None], dim=-1)
    if rows:
        tempered[rows] = _cut(tempered[rows], top_p[rows])
    return tempered


def _cut(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """Cut rows (B, V) to their nuclei, by the likeliest few hundred tokens if they suffice, else by a sort of the
    vocabulary."""
    ranked = probabilities.topk(min(_LIKELIEST, probabilities.shape[-1]), dim=-1).values
    inside = _inside(ranked, top_p)
    # A nucleus is wider than the ranked tokens; a rehearsal's fake tensors hold no data and take this costlier case.
    if type(inside) is not Tensor or bool(inside[:, -1].any()):
        ranked = probabilities.sort(dim=-1, descending=True).values
        inside = _inside(ranked, top_p)
    size = inside.sum(dim=-1, keepdim=True)
    least = ranked.gather(-1, size - 1)
    above, level = probabilities > least, probabilities == least
    retained = above | (level & (level.cumsum(dim=-1) <= size - above.sum(dim=-1, keepdim=True)))
    cut = torch.where(retained, probabilities, 0.0)
    return cut / cut.sum(dim=-1, keepdim=True)


def _inside(ranked: Tensor, top_p: Tensor) -> Tensor:
    """True for the ranks whose mass before them is below `top_p`, and always for the first."""
    inside = ranked.cumsum(dim=-1) - ranked < top_p[:, None] - 1.0 / _GRAIN
    inside[:, 0] = True
    return inside


def inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token whose interval of [0, 1) contains the uniform; intervals are in order of token id.

    probabilities: (B, V); uniforms: (B,). Returns (B,); a token of probability 0 is never returned.
    """
    edges = probabilities.cumsum(dim=-1)
    drawn = torch.searchsorted(edges, (uniforms * edges[:, -1])[:, None], right=True)[:, 0]
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(dim=-1)
    return torch.minimum(drawn, last)


def margin(logprobs: Tensor) -> Tensor:
    """Return the likeliest token's probability minus the second's, (B,), from logprobs (B, V); 1 if V is 1."""
    if logprobs.shape[-1] == 1:
        return torch.ones_like(logprobs[:, 0])
    first, second = logprobs.topk(2, dim=-1).values.exp().unbind(-1)
    return first - second


def entropy(logprobs: Tensor) -> Tensor:
    """Return H = -sum p ln p in nats over the last axis; tokens of probability 0 add nothing.

    >>> float(entropy(torch.full((4,), .25).log()).__round__(6))
    1.386294
    """
    return -(logprobs.exp() * logprobs.clamp_min(torch.finfo(logprobs.dtype).min)).sum(dim=-1)
