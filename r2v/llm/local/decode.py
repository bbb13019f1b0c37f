"""Batched generation: prefill in groups of similar length, one cached decoding of all rows, keyed sampling.

`r2v.llm.sampling` chooses each token from its logits, independently of the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from r2v.llm.local.kv_caches import join, joinable
from r2v.llm.local.prefill import prefill
from r2v.llm.local.prefix_cache import PrefixCache
from r2v.llm.sampling import choose
from r2v.llm.types import Request
from r2v.randomness import Key, uniform


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Sampling parameters of one completion; `prompt` is an index. Token i is drawn under `(*key, i)`."""

    prompt: int
    key: Key
    temperature: float
    top_p: float
    max_tokens: int
    logprobs: bool = True
    """False if no one reads the tokens' figures; only a serving engine leaves them out."""

    @classmethod
    def of(cls, request: Request, k: int, prompt: int = 0) -> Draw:
        """Return the draw of sample k of a request."""
        return cls(
            prompt=prompt,
            key=(*request.key, k),
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_tokens,
            logprobs=request.logprobs,
        )


@dataclass(slots=True)
class Drawn:
    """A completion: its tokens, each with its log-probability and the entropy (nats) and margin of the untempered
    distribution. `ended`: the last token is an end token."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    ended: bool = False


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    draws: Sequence[Draw],
    *,
    end_ids: frozenset[int],
    pad_id: int,
    prefixes: PrefixCache | None = None,
    padding: int | None = None,
) -> list[Drawn]:
    """Return one completion per draw. Draws of the same prompt share its prefill, and states in `prefixes` are not
    computed again. padding: as in `prefill`.

    `model` is a transformers causal language model in evaluation mode. Ended rows are removed once they are half of the
    batch, because removal copies the others.
    """
    drawn = [Drawn() for _ in draws]
    with torch.inference_mode():
        batch, row_of = Batch.prefill(model, prompts, pad_id, prefixes, padding)
        rows = sorted(range(len(draws)), key=lambda row: row_of[draws[row].prompt])
        batch.select([row_of[draws[row].prompt] for row in rows])
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
    """Choose the next token of every row, record it in `drawn`, and return the tokens."""
    chosen = choose(
        logits,
        [draw.temperature for draw in draws],
        [draw.top_p for draw in draws],
        [
            uniform(*draw.key, len(record.tokens)) if draw.temperature > 0 else 0.0
            for draw, record in zip(draws, drawn, strict=True)
        ],
    )
    tokens: list[int] = chosen.tokens.tolist()
    figures = torch.stack((chosen.logprobs, chosen.entropies, chosen.margins)).tolist()  # each transfer waits for a GPU
    for record, token, logprob, spread, ahead in zip(drawn, tokens, *figures, strict=True):
        record.tokens.append(token)
        record.logprobs.append(round(logprob, 6) + 0.0)
        record.entropies.append(round(spread, 6) + 0.0)
        record.margins.append(round(ahead, 6) + 0.0)
    return tokens


@dataclass(slots=True)
class Batch:
    """Rows being decoded: the model's cache, the attention mask (B, T) and the next token's logits (B, V)."""

    model: Any
    cache: Any
    mask: Tensor
    logits: Tensor

    @classmethod
    def prefill(
        cls,
        model: Any,
        prompts: Sequence[Sequence[int]],
        pad_id: int,
        prefixes: PrefixCache | None,
        padding: int | None,
    ) -> tuple[Batch, dict[int, int]]:
        """Read all prompts. Return the batch and the row of each prompt."""
        reads = prefill(model, prompts, pad_id, prefixes, padding=padding, logits_to_keep=1)
        parts = [cls(model, read.output.past_key_values, read.mask, read.output.logits[:, -1]) for read in reads]
        row_of = {prompt: row for row, prompt in enumerate(i for read in reads for i in read.rows)}
        return (cls._join(parts) if joinable(model) else parts[0]), row_of

    @classmethod
    def _join(cls, parts: Sequence[Batch]) -> Batch:
        """Return all rows in one batch, padded on the left to the widest. The parts must not be used afterwards."""
        width = max(part.mask.shape[1] for part in parts)
        return cls(
            parts[0].model,
            join([part.cache for part in parts], width),
            torch.cat([pad(part.mask, (width - part.mask.shape[1], 0)) for part in parts]),
            torch.cat([part.logits for part in parts]),
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a repeated row is copied."""
        if list(rows) == list(range(len(self.mask))):
            return
        index = torch.tensor(list(rows), device=self.mask.device)
        self.cache.reorder_cache(index)
        self.mask, self.logits = self.mask[index], self.logits[index]

    def step(self, tokens: Sequence[int]) -> None:
        """Append a token to every row and compute the next logits."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=-1)
        output = self.model(
            input_ids=torch.tensor(tokens, device=self.mask.device)[:, None],
            attention_mask=self.mask,
            position_ids=self.mask.sum(dim=-1, keepdim=True) - 1,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]
