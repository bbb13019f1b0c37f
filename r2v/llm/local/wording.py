"""From drawn tokens to a reply: texts, tokens by name, and what they cost; for every backend that decodes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from r2v.config import Price
from r2v.llm.local.decode import Drawn
from r2v.llm.types import Reply, Request, Sample, Usage


class TokenReplies:
    """Words replies of a model's name and price. `actions`: what a decoded text says to do. A sample's `tokens`,
    `logprobs`, `entropies` and `margins` include the end token, where it was reached; its text does not."""

    def __init__(
        self,
        tokenizer: Any,
        name: str,
        price: Price,
        actions: Callable[[str], tuple[str, ...]] = lambda text: (text,),
    ) -> None:
        self.tokenizer, self.name, self.price, self._actions = tokenizer, name, price, actions
        self._word = lru_cache(None)(self._decode_one)

    def reply(self, tokens_in: int, drawn: Sequence[Drawn]) -> Reply:
        """The reply of these completions to a prompt of so many tokens."""
        tokens_out = sum(len(one.tokens) for one in drawn)
        cost = (tokens_in * self.price.input + tokens_out * self.price.output) / 1e6
        return Reply(
            samples=tuple(map(self._sample, drawn)),
            model=self.name,
            usage=Usage(tokens_in=tokens_in, tokens_out=tokens_out, cost_usd=cost),
        )

    def _sample(self, drawn: Drawn) -> Sample:
        body = drawn.tokens[:-1] if drawn.ended else drawn.tokens
        first, *more = self._actions(self.tokenizer.decode(body, skip_special_tokens=True))
        return Sample(
            text=first,
            more=tuple(more),
            tokens=tuple(map(self._word, drawn.tokens)),
            logprobs=tuple(drawn.logprobs),
            entropies=tuple(drawn.entropies),
            margins=tuple(drawn.margins),
            finish_reason="stop" if drawn.ended else "length",
        )

    def _decode_one(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a turn: the tokenizer's and those the model was published with. `model`: anything with a
    `config` and a `generation_config`."""
    ids = {tokenizer.eos_token_id}
    for config in (model.config, getattr(model, "generation_config", None)):
        ends = getattr(config, "eos_token_id", None)
        ids |= set(ends) if isinstance(ends, (list, tuple)) else {ends}
    return frozenset(ids - {None})


def num_drawn(request: Request) -> int:
    """Completions to compute: greedy ones are all the same."""
    return request.num_samples if request.temperature > 0 else 1
