"""One batched generate: prefill in groups of like length, one cached decode of all, keyed sampling.

Sampling is by inverse CDF from a keyed uniform, so a draw belongs to its request and not to its place in a
batch. Log-probabilities are taken in float64 and compared after rounding to 1e-9; what remains of a batch's
composition (the order of sums inside a matrix product, 1e-15 in float64) then decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from r2v.llm.local.kv_caches import join, joinable
from r2v.llm.local.prefill import positions, prefill
from r2v.llm.local.prefix_cache import PrefixCache
from r2v.randomness import Key, uniform

_GRAIN = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One completion to make: of which prompt, and how. Token i is drawn under `(*key, i)`."""

    prompt: int
    key: Key
    temperature: float
    top_p: float
    max_tokens: int


@dataclass(slots=True)
class Drawn:
    """Its tokens, each with its log-probability and the entropy (nats) of the distribution it came from,
    both untempered. `ended`: the last token is an end token."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    ended: bool = False


def nucleus(logprobs: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """The tempered distribution cut to its nucleus: the likeliest tokens, ties by id, up to the one with which
    their mass reaches `top_p`; all of it with 1, which spares a sort of the vocabulary.

    logprobs: (B, V) nats; temperature, top_p: (B,), temperature above 0. Returns (B, V), rows summing to 1.
    """
    tempered = torch.softmax(logprobs / temperature[:, None], dim=-1)
    rows = (top_p < 1).nonzero()[:, 0]
    if len(rows):
        tempered[rows] = _cut(tempered[rows], top_p[rows])
    return tempered


def _cut(probabilities: Tensor, top_p: Tensor) -> Tensor:
    ranked, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(dim=-1) - ranked
    kept = torch.where(before < top_p[:, None] - 1.0 / _GRAIN, ranked, 0.0)
    kept[:, 0] = ranked[:, 0]
    found = torch.zeros_like(probabilities).scatter(-1, order, kept)
    return found / found.sum(dim=-1, keepdim=True)


def inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The token in whose slice of [0, 1) the uniform falls, slices in order of token id.

    probabilities: (B, V); uniforms: (B,). Returns (B,); a token of probability 0 is never returned.
    """
    edges = probabilities.cumsum(dim=-1)
    drawn = torch.searchsorted(edges, (uniforms * edges[:, -1])[:, None], right=True)[:, 0]
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(dim=-1)
    return torch.minimum(drawn, last)


def entropy(logprobs: Tensor) -> Tensor:
    """H = -sum p ln p in nats over the last axis; tokens of probability 0 add nothing.

    >>> float(entropy(torch.full((4,), .25).log()).__round__(6))
    1.386294
    """
    return -(logprobs.exp() * logprobs.clamp_min(torch.finfo(logprobs.dtype).min)).sum(dim=-1)


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    draws: Sequence[Draw],
    *,
    end_ids: frozenset[int],
    pad_id: int,
    prefixes: PrefixCache | None = None,
) -> list[Drawn]:
    """One completion per draw. Every prompt goes through the model once, however many draws share it, and what
    `prefixes` remembers of it not at all.

    `model` is a transformers causal language model in evaluation mode. Rows that have ended leave the batch once
    they are half of it: to go on without them is to copy the others.
    """
    drawn = [Drawn() for _ in draws]
    with torch.inference_mode():
        batch, place = _Batch.prefill(model, prompts, pad_id, prefixes)
        rows = sorted(range(len(draws)), key=lambda row: place[draws[row].prompt])
        batch.select([place[draws[row].prompt] for row in rows])
        alive = list(range(len(rows)))
        while True:
            tokens = _choose(batch.logits[alive], [draws[rows[i]] for i in alive], [drawn[rows[i]] for i in alive])
            going, feed = [], [pad_id] * len(rows)
            for i, token in zip(alive, tokens, strict=True):
                record, feed[i] = drawn[rows[i]], token
                record.ended = token in end_ids
                if not record.ended and len(record.tokens) < draws[rows[i]].max_tokens:
                    going.append(i)
            if not going:
                return drawn
            if 2 * len(going) <= len(rows):
                batch.select(going)
                rows, feed = [rows[i] for i in going], [feed[i] for i in going]
                going = list(range(len(rows)))
            alive = going
            batch.step(feed)


def _choose(logits: Tensor, draws: Sequence[Draw], drawn: Sequence[Drawn]) -> list[int]:
    """Choose and record the next token of every row."""
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    grained = torch.round(logprobs * _GRAIN) / _GRAIN
    chosen = grained.argmax(dim=-1)
    sampled = [i for i, draw in enumerate(draws) if draw.temperature > 0]
    if sampled:

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=logits.device)

        kept = nucleus(
            grained[sampled], column([draws[i].temperature for i in sampled]), column([draws[i].top_p for i in sampled])
        )
        uniforms = [uniform(*draws[i].key, len(drawn[i].tokens)) for i in sampled]
        chosen[sampled] = inverse_cdf(kept, column(uniforms))
    picked = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
    entropies = entropy(logprobs).tolist()
    tokens: list[int] = chosen.tolist()
    for record, token, logprob, spread in zip(drawn, tokens, picked, entropies, strict=True):
        record.tokens.append(token)
        record.logprobs.append(round(logprob, 6) + 0.0)
        record.entropies.append(round(spread, 6) + 0.0)
    return tokens


@dataclass(slots=True)
class _Batch:
    """Rows in flight: the model's cache, who is padding, and the logits (B, V) of the next token."""

    model: Any
    cache: Any
    mask: Tensor
    logits: Tensor

    @classmethod
    def prefill(
        cls, model: Any, prompts: Sequence[Sequence[int]], pad_id: int, prefixes: PrefixCache | None = None
    ) -> tuple[_Batch, dict[int, int]]:
        """Run all prompts; and at which row each of them is."""
        reads = prefill(model, prompts, pad_id, prefixes, logits_to_keep=1)
        parts = [cls(model, read.output.past_key_values, read.mask, read.output.logits[:, -1]) for read in reads]
        place = {prompt: row for row, prompt in enumerate(i for read in reads for i in read.rows)}
        return (cls._join(parts) if joinable(model) else parts[0]), place

    @classmethod
    def _join(cls, parts: Sequence[_Batch]) -> _Batch:
        """All rows in one batch, padded on the left to the widest. The first part is used up."""
        width = max(part.mask.shape[1] for part in parts)
        return cls(
            parts[0].model,
            join([part.cache for part in parts], width),
            torch.cat([pad(part.mask, (width - part.mask.shape[1], 0)) for part in parts]),
            torch.cat([part.logits for part in parts]),
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row named twice is copied."""
        if list(rows) == list(range(len(self.mask))):
            return
        index = torch.tensor(list(rows), device=self.mask.device)
        self.cache.reorder_cache(index)
        self.mask, self.logits = self.mask[index], self.logits[index]

    def step(self, tokens: Sequence[int]) -> None:
        """Feed every row its token."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=-1)
        output = self.model(
            input_ids=torch.tensor(tokens, device=self.mask.device)[:, None],
            attention_mask=self.mask,
            position_ids=positions(self.mask)[:, -1:],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]
