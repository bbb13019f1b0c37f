"""Generation for one role: batches of prompts in, completions with token ids and log-probabilities out.

A `Generator` serves the wave engine. What one conversation requests at the same moment (its K hints) is one call, so
a wave can tell when no conversation has anything to add. Every draw is keyed. Token ids are kept as drawn and never
made again from text. Log-probabilities are those that an update of the same policy computes
(`r2v.hrl.algorithm.logprobs`), so PPO's ratio begins at exactly 1 even where a KV cache rounds bfloat16 differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
from r2v.hrl.models.roles import GeneratingRole, Roles
from r2v.hrl.types import Completion, TokenIds
from r2v.llm.local.decode import Draw, Drawn, generate
from r2v.llm.local.prefix_cache import PrefixCache
from r2v.randomness import Key

_DIGITS = 9
"""Log-probabilities are rounded to these decimals: far above what a batch's composition changes in float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One completion to generate. Token i is drawn under `(*key, i)`; temperature 0 is greedy and draws nothing."""

    prompt: TokenIds
    key: Key
    max_tokens: int
    temperature: float = 1.0
    return_logprobs: bool = True
    """Costs another forward pass."""


class Generator:
    """The generation backend of one role.

    The model's weights must not change while it is in use: it caches the prompts that it has read. A call may be of
    any size; `in_flight` bounds how many completions are generated together. The role's base model is held while it
    generates, so two generators on a shared base never run with each other's adapter.
    """

    max_batch = 1 << 30

    def __init__(self, roles: Roles, role: GeneratingRole, version: int = 0, in_flight: int = 64) -> None:
        self.roles, self.role, self.version, self.in_flight = roles, role, version, in_flight
        self.passes = 0
        """Batches generated so far."""
        with roles.using(role) as model:
            self._end_ids = _end_ids(model, roles.tokenizer)
            self._prefixes = PrefixCache(model) if PrefixCache.serve(model) else None
        pad = roles.tokenizer.pad_token_id
        self._pad_id: int = min(self._end_ids) if pad is None else pad

    def answer(self, questions: Sequence[tuple[GenerationRequest, ...]]) -> list[tuple[Completion, ...]]:
        """The completions of every conversation's requests, in order; what the wave engine calls."""
        completions = iter(self.generate([request for requests in questions for request in requests]))
        return [tuple(next(completions) for _ in requests) for requests in questions]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """One completion per request, in order, however many."""
        completions: dict[int, Completion] = {}
        for batch in _batches(requests, self.in_flight):
            completions.update(zip(batch, self._generate_batch([requests[i] for i in batch]), strict=True))
        return [completions[i] for i in range(len(requests))]

    def _generate_batch(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        prompts = {prompt: index for index, prompt in enumerate(dict.fromkeys(request.prompt for request in requests))}
        draws = [
            Draw(
                prompt=prompts[request.prompt],
                key=request.key,
                temperature=request.temperature,
                top_p=1.0,
                max_tokens=request.max_tokens,
            )
            for request in requests
        ]
        with self.roles.using(self.role) as model:
            if model.device.type == "cpu":
                torch.set_num_threads(1)  # the setting is per thread, and waves run in threads of their own
            drawn = generate(
                model, list(prompts), draws, end_ids=self._end_ids, pad_id=self._pad_id, prefixes=self._prefixes
            )
            logprobs = self._logprobs(model, requests, drawn)
        self.passes += 1
        for index, (request, sequence) in enumerate(zip(requests, drawn, strict=True)):
            text = self.roles.tokenizer.decode(sequence.tokens, skip_special_tokens=True)
            yield Completion(
                prompt=request.prompt,
                tokens=tuple(sequence.tokens),
                logprobs=logprobs.get(index, ()),
                ended=sequence.ended,
                version=self.version,
                text=text,
            )

    def _logprobs(
        self, model: Any, requests: Sequence[GenerationRequest], drawn: Sequence[Drawn]
    ) -> dict[int, tuple[float, ...]]:
        """Log-probabilities by index in the batch, of the requests that want them."""
        indices = [index for index, request in enumerate(requests) if request.return_logprobs]
        if not indices:
            return {}
        batch = pad_sequences(
            [requests[i].prompt for i in indices], [drawn[i].tokens for i in indices], device=model.device
        )
        with torch.no_grad():
            logprobs = completion_logprobs(model, batch).double().cpu()
        return {
            # + 0.0 makes -0.0 a 0.0: the two print differently, and records are compared as bytes
            index: tuple(round(value, _DIGITS) + 0.0 for value in row[mask].tolist())
            for index, row, mask in zip(indices, logprobs, batch.completion.cpu(), strict=True)
        }


def _batches(requests: Sequence[GenerationRequest], size: int) -> Iterator[list[int]]:
    """Requests by length of prompt, at most `size` at a time. The order is total, so that the order in which requests
    arrived decides nothing, to the last bit."""
    order = sorted(
        range(len(requests)), key=lambda i: (len(requests[i].prompt), requests[i].prompt, str(requests[i].key))
    )
    yield from (order[start : start + size] for start in range(0, len(order), size))


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a reply: the tokenizer's, and those the model was published with."""
    ids = {tokenizer.eos_token_id}
    for config in (model.config, getattr(model, "generation_config", None)):
        ends = getattr(config, "eos_token_id", None)
        ids |= set(ends) if isinstance(ends, (list, tuple)) else {ends}
    return frozenset(ids - {None})
