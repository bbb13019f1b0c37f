"""Local backend: a transformers model in this process that answers each wave by batched generation.

    backend = LocalBackend(loaded.model, loaded.tokenizer, encoder, name="slm", price=config.cost.slm_price)
    replies = backend.answer(requests)

Requests of a wave may differ in every field. With float64 weights on a CPU a reply depends on its request alone, to
the byte: the other requests of the wave and their order do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from r2v.config import Price
from r2v.llm.local.decode import Draw, generate
from r2v.llm.local.prefix_cache import PrefixCache
from r2v.llm.local.token_replies import TokenReplies, end_ids, num_drawn
from r2v.llm.types import Reply, Request
from r2v.memory.on_device.wave_rows import WaveRows
from r2v.memory.release import release_growth
from r2v.wire.message import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedRequest(Request):
    """A request with its messages encoded as token ids."""

    prompt: tuple[int, ...]


class LocalBackend:
    """Backend that answers requests with a local model.

    encode: messages -> prompt ids; the wave engine calls it through `prepare`, while the model computes. max_batch:
    most completions decoded at a time. padding: as in `r2v.llm.local.prefill`. actions: decoded text -> actions. States
    of recurring prompt prefixes are reused if the model's caches can be cut (`r2v.llm.local.prefix_cache`), so its
    weights must not change. Results are reproducible to the byte on a CPU in float64.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        encode: Callable[[Sequence[Message]], Sequence[int]],
        *,
        name: str,
        price: Price,
        max_batch: int | WaveRows = 64,
        padding: int | None = None,
        actions: Callable[[str], tuple[str, ...]] = lambda text: (text,),
    ) -> None:
        self.model, self.tokenizer, self.encode = model.eval(), tokenizer, encode
        self.name, self.price, self._padding = name, price, padding
        self._rows = WaveRows(most=max_batch) if isinstance(max_batch, int) else max_batch
        self.max_batch = self._rows.most
        self._end_ids = end_ids(model, tokenizer)
        self._pad_id = min(self._end_ids) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._prefixes = PrefixCache(model) if PrefixCache.supports(model) else None
        self._replies = TokenReplies(tokenizer, name, price, actions)
        self._resident = 0

    def prepare(self, request: Request) -> Request:
        """Return the request with its encoded prompt."""
        own = {field.name: getattr(request, field.name) for field in fields(Request)}
        return EncodedRequest(**own, prompt=tuple(self.encode(request.messages)))

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply per request, in order."""
        if self.model.device.type == "cpu":
            torch.set_num_threads(1)
        prompts = [
            request.prompt if isinstance(request, EncodedRequest) else tuple(self.encode(request.messages))
            for request in requests
        ]

        def answered(rows: int) -> dict[int, Reply]:
            batches = _batches(prompts, requests, rows)
            return {i: reply for batch in batches for i, reply in self._answer(batch, prompts, requests)}

        if not requests:
            return []
        longest = max(len(prompt) + request.max_tokens for prompt, request in zip(prompts, requests, strict=True))
        total = sum(map(num_drawn, requests))
        replies = self._rows.run(answered, tokens=longest, total=total, phase=f"decoder, {self.name}")
        self._resident = release_growth(self._resident)
        return [replies[index] for index in range(len(requests))]

    def _answer(
        self, batch: list[int], prompts: Sequence[tuple[int, ...]], requests: Sequence[Request]
    ) -> Iterator[tuple[int, Reply]]:
        distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts[i] for i in batch))}
        draws = [
            Draw.of(requests[i], k, prompt=distinct[prompts[i]]) for i in batch for k in range(num_drawn(requests[i]))
        ]
        drawn = iter(
            generate(
                self.model,
                list(distinct),
                draws,
                end_ids=self._end_ids,
                pad_id=self._pad_id,
                prefixes=self._prefixes,
                padding=self._padding,
            )
        )
        for i in batch:
            own = [next(drawn) for _ in range(num_drawn(requests[i]))]
            own *= requests[i].num_samples // len(own)
            yield i, self._replies.reply(len(prompts[i]), own)


def _batches(prompts: Sequence[Sequence[int]], requests: Sequence[Request], max_batch: int) -> Iterator[list[int]]:
    """Yield indices of requests by length of prompt, in batches of at most `max_batch` completions (or one request)."""
    batch: list[int] = []
    rows = 0
    for i in sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i)):
        if batch and rows + num_drawn(requests[i]) > max_batch:
            yield batch
            batch, rows = [], 0
        batch.append(i)
        rows += num_drawn(requests[i])
    if batch:
        yield batch
