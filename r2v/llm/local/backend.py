"""A transformers model in this process as a backend: one wave in, one batched generate out.

    backend = LocalBackend(loaded.model, loaded.tokenizer, encoder, name="slm", price=config.cost.slm_price)
    replies = backend.answer(requests)

Requests of a wave may differ in everything. With float64 weights on a CPU a reply is a function of its request
alone: what else was in the wave, and in which order, changes no byte of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from r2v.config import Price
from r2v.llm.local.decode import Draw, generate
from r2v.llm.local.prefix_cache import PrefixCache
from r2v.llm.local.wording import TokenReplies, end_ids, num_drawn
from r2v.llm.types import Reply, Request
from r2v.wire.message import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedRequest(Request):
    """A request whose messages are token ids already."""

    prompt: tuple[int, ...]


class LocalBackend:
    """Answers requests with a local model. `encode` turns messages into prompt ids: for the wave engine in `prepare`,
    so that the model need not wait for it. `actions`: what a decoded text says to do.

    Results are promised to the byte on a CPU in float64; `max_batch` bounds completions in flight. What the model made
    of earlier prompts is used again where their beginnings recur and its caches can be cut
    (`r2v.llm.local.prefix_cache`); the model's weights must stay as they are. padding: of a pass through the model, in
    tokens (`r2v.llm.local.prefill`); None: by its device.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        encode: Callable[[Sequence[Message]], Sequence[int]],
        *,
        name: str,
        price: Price,
        max_batch: int = 64,
        padding: int | None = None,
        actions: Callable[[str], tuple[str, ...]] = lambda text: (text,),
    ) -> None:
        self.model, self.tokenizer, self.encode = model.eval(), tokenizer, encode
        self.name, self.price, self.max_batch, self._padding = name, price, max_batch, padding
        self._end_ids = end_ids(model, tokenizer)
        self._pad_id = min(self._end_ids) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._prefixes = PrefixCache(model) if PrefixCache.serve(model) else None
        self._replies = TokenReplies(tokenizer, name, price, actions)

    def prepare(self, request: Request) -> Request:
        """The request with its prompt."""
        own = {field.name: getattr(request, field.name) for field in fields(Request)}
        return EncodedRequest(**own, prompt=tuple(self.encode(request.messages)))

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        if self.model.device.type == "cpu":
            torch.set_num_threads(1)
        prompts = [
            request.prompt if isinstance(request, EncodedRequest) else tuple(self.encode(request.messages))
            for request in requests
        ]
        replies: dict[int, Reply] = {}
        for batch in _batches(prompts, requests, self.max_batch):
            replies.update(self._answer(batch, prompts, requests))
        return [replies[index] for index in range(len(requests))]

    def _answer(
        self, batch: list[int], prompts: Sequence[tuple[int, ...]], requests: Sequence[Request]
    ) -> Iterator[tuple[int, Reply]]:
        distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts[i] for i in batch))}
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


def _batches(prompts: Sequence[Sequence[int]], requests: Sequence[Request], most: int) -> Iterator[list[int]]:
    """Questions by length of prompt, in batches of at most `most` completions (one question at least)."""
    batch: list[int] = []
    rows = 0
    for i in sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i)):
        if batch and rows + num_drawn(requests[i]) > most:
            yield batch
            batch, rows = [], 0
        batch.append(i)
        rows += num_drawn(requests[i])
    if batch:
        yield batch
