"""Generation for one role: batches of prompts in, completions with token ids and log-probabilities out.

A `Generator` serves the wave engine. Simultaneous requests of one conversation (its K hints) are one call, so that a
wave is complete once every conversation has called. Every draw is keyed. Token ids are kept as drawn and never encoded
again from text. Log-probabilities are computed as in an update of the same policy (`r2v.hrl.algorithm.logprobs`), so
PPO's ratio begins at exactly 1 even if a KV cache rounds bfloat16 differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from r2v.hrl.algorithm.logprobs import autocast_of, completion_logprobs, pad_sequences
from r2v.hrl.models.roles import GeneratingRole, Roles
from r2v.hrl.parallel.base_model import fused_adapters
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.types import Completion, TokenIds
from r2v.llm.engines.client import Adapter
from r2v.llm.local.decode import Draw, Drawn, generate
from r2v.llm.local.prefix_cache import PrefixCache
from r2v.llm.local.token_replies import end_ids
from r2v.memory.on_device.retry_on_oom import retry_on_oom
from r2v.randomness import Key

_ROWS = 64
"""Default of the completions at a time."""
_DIGITS = 9
"""Decimals of log-probabilities; a batch's composition changes float64 values only far below them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """Request of one completion. Token i is drawn under `(*key, i)`; temperature 0 is greedy."""

    prompt: TokenIds
    key: Key
    max_tokens: int
    temperature: float = 1.0
    return_logprobs: bool = True
    """True costs another forward pass."""


class Generator:
    """Generation backend of one role.

    The model's weights must not change during its use, because it caches the prompts that it has read. A call may have
    any size; `rows` bounds the completions generated together, and those read for their log-probabilities. A batch that
    does not fit a GPU is repeated in halves, and so are all later ones. The role's base model is locked during
    generation, so two generators on a shared base never run with each other's adapter. If the roles are served
    (`r2v.hrl.models.served`), the engine draws the tokens, and this model computes their log-probabilities.
    """

    max_batch = 1 << 30

    def __init__(
        self,
        roles: Roles,
        role: GeneratingRole,
        version: int = 0,
        rows: RolloutRows | None = None,
        prompt_cache: bool | None = None,
    ) -> None:
        self.roles, self.role, self.version = roles, role, version
        self.rows = rows or RolloutRows(rows={role: _ROWS}, read=_ROWS)
        self.passes = 0
        """Number of batches generated so far."""
        with roles.using(role) as model:
            self._end_ids = end_ids(model, roles.tokenizer)
            if prompt_cache is None:
                prompt_cache = model.device.type == "cpu"  # the plan of a GPU's memory does not include it
            local = roles.served is None
            self._prefixes = PrefixCache(model) if local and prompt_cache and PrefixCache.supports(model) else None
        self._adapter = None if local else roles.published(role)
        pad = roles.tokenizer.pad_token_id
        self._pad_id: int = min(self._end_ids) if pad is None else pad

    def answer(self, questions: Sequence[tuple[GenerationRequest, ...]]) -> list[tuple[Completion, ...]]:
        """Return the completions of every conversation's requests, in order, for the wave engine."""
        completions = iter(self.generate([request for requests in questions for request in requests]))
        return [tuple(next(completions) for _ in requests) for requests in questions]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Return one completion per request, in order."""
        if self._adapter is not None:
            return self._generate_by_engine(self._adapter, requests)
        completions: dict[int, Completion] = {}
        order = _by_length(requests)
        while len(completions) < len(order):
            size = self.rows.rows[self.role]
            some = order[len(completions) : len(completions) + size]
            batch = [requests[i] for i in some]
            done = retry_on_oom(partial(self._in_parts, batch), size, phase=f"rollout, {self.role}", alone=True)
            if done.rows < size:
                self.rows.rows[self.role] = done.rows
            completions.update(zip(some, done.result, strict=True))
        return [completions[i] for i in range(len(requests))]

    def _in_parts(self, requests: Sequence[GenerationRequest], rows: int) -> list[Completion]:
        self.rows.read = min(rows, self.rows.read)
        parts = [requests[start : start + rows] for start in range(0, len(requests), rows)]
        return [completion for part in parts for completion in self._generate_batch(part)]

    def _generate_by_engine(self, adapter: Adapter, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Draw all completions by the engine; compute their log-probabilities by this model, in as many rows as fit."""
        assert self.roles.served is not None
        prompts, draws = _draws(requests)
        drawn = self.roles.served.draw(adapter, prompts, draws, self._end_ids)
        self.passes += 1

        def read(rows: int) -> dict[int, tuple[float, ...]]:
            self.rows.read = rows
            with self.roles.using(self.role) as model:
                return self._logprobs(model, requests, drawn)

        logprobs = retry_on_oom(read, self.rows.read, phase=f"rollout, {self.role}", alone=True).result
        return list(self._completions(requests, drawn, logprobs, by_engine=True))

    def _generate_batch(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        prompts, draws = _draws(requests)
        with self.roles.using(self.role) as model:
            if model.device.type == "cpu":
                torch.set_num_threads(1)  # the setting is per thread, and waves run in threads of their own
            with autocast_of(model), fused_adapters(model):
                drawn = generate(
                    model, prompts, draws, end_ids=self._end_ids, pad_id=self._pad_id, prefixes=self._prefixes
                )
            logprobs = self._logprobs(model, requests, drawn)
        self.passes += 1
        yield from self._completions(requests, drawn, logprobs)

    def _completions(
        self,
        requests: Sequence[GenerationRequest],
        drawn: Sequence[Drawn],
        logprobs: Mapping[int, tuple[float, ...]],
        by_engine: bool = False,
    ) -> Iterator[Completion]:
        for index, (request, sequence) in enumerate(zip(requests, drawn, strict=True)):
            text = self.roles.tokenizer.decode(sequence.tokens, skip_special_tokens=True)
            yield Completion(
                prompt=request.prompt,
                tokens=tuple(sequence.tokens),
                logprobs=logprobs.get(index, ()),
                ended=sequence.ended,
                version=self.version,
                text=text,
                engine_logprobs=tuple(sequence.logprobs) if by_engine and index in logprobs else (),
            )

    def _logprobs(
        self, model: Any, requests: Sequence[GenerationRequest], drawn: Sequence[Drawn]
    ) -> dict[int, tuple[float, ...]]:
        """Return index in the batch -> log-probabilities, for the requests with `return_logprobs`."""
        indices = [index for index, request in enumerate(requests) if request.return_logprobs]
        if not indices:
            return {}
        by_index: dict[int, tuple[float, ...]] = {}
        for start in range(0, len(indices), self.rows.read):
            some = indices[start : start + self.rows.read]
            batch = pad_sequences(
                [requests[i].prompt for i in some], [drawn[i].tokens for i in some], device=model.device
            )
            with torch.no_grad():
                logprobs = completion_logprobs(model, batch).double().cpu()
            for index, row, mask in zip(some, logprobs, batch.completion.cpu(), strict=True):
                # + 0.0 turns -0.0 into 0.0: they print differently, and records are compared as bytes
                by_index[index] = tuple(round(value, _DIGITS) + 0.0 for value in row[mask].tolist())
        return by_index


def _draws(requests: Sequence[GenerationRequest]) -> tuple[list[TokenIds], list[Draw]]:
    """Return the distinct prompts, and a draw for each request."""
    prompts = {prompt: index for index, prompt in enumerate(dict.fromkeys(request.prompt for request in requests))}
    draws = [
        Draw(
            prompt=prompts[request.prompt],
            key=request.key,
            temperature=request.temperature,
            top_p=1.0,
            max_tokens=request.max_tokens,
            logprobs=request.return_logprobs,
        )
        for request in requests
    ]
    return list(prompts), draws


def _by_length(requests: Sequence[GenerationRequest]) -> list[int]:
    """Return indices of the requests by length of prompt. The order is total, so that results do not depend on the
    order of arrival, to the last bit."""
    return sorted(
        range(len(requests)), key=lambda i: (len(requests[i].prompt), requests[i].prompt, str(requests[i].key))
    )
