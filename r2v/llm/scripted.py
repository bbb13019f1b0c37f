"""Scripted model: a benchmark's expert as a model backend, priced like the LLM it replaces."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from r2v.config import Price
from r2v.llm.answer_cache import AnswerCache
from r2v.llm.types import Reply, Request, Sample, Usage

_WORD = re.compile(r"\w+|[^\w\s]")
_COUNTS, _EVICTION = AnswerCache(1 << 13), threading.Lock()  # by digest of a text; an emulator's threads share them


def count_tokens(text: str) -> int:
    """Return an estimate of a text's tokens without a tokenizer: its words and punctuation marks."""
    key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
    count: int | None = _COUNTS.get(key)
    if count is None:
        count = len(_WORD.findall(text))
        with _EVICTION:  # two threads must not evict the same entry
            _COUNTS[key] = count
    return count


class ScriptedBackend:
    """Backend that answers each request with `generate(request)` and prices prompt and reply. If the temperature is
    above 0, sample k is generated under the key (*key, k)."""

    def __init__(self, generate: Callable[[Request], str], *, name: str, price: Price, max_batch: int = 256) -> None:
        self.max_batch = max_batch
        self._generate, self._name, self._price = generate, name, price

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply per request, in order."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        texts = self._samples(request)
        tokens_in, tokens_out = sum(count_tokens(m.text) for m in request.messages), sum(map(count_tokens, texts))
        cost = (tokens_in * self._price.input + tokens_out * self._price.output) / 1e6
        return Reply(
            samples=tuple(Sample(text=text) for text in texts),
            model=self._name,
            usage=Usage(tokens_in=tokens_in, tokens_out=tokens_out, cost_usd=cost),
        )

    def _samples(self, request: Request) -> list[str]:
        if request.temperature > 0:
            return [self._generate(replace(request, key=(*request.key, k))) for k in range(request.num_samples)]
        return [self._generate(request)] * request.num_samples
