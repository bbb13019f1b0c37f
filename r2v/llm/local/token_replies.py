"""Replies from drawn tokens: decoded texts, token strings and cost, for every backend that decodes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from r2v.config import Price
from r2v.llm.local.decode import Drawn
from r2v.llm.types import Reply, Request, Sample, Usage


class TokenReplies:
    """Builder of a model's replies. actions: decoded text -> actions, at least one. A sample's `tokens`, `logprobs`,
    `entropies` and `margins` include the end token if it was drawn; its text does not."""

    def __init__(
        self,
        tokenizer: Any,
        name: str,
        price: Price,
        actions: Callable[[str], tuple[str, ...]] = lambda text: (text,),
    ) -> None:
        self.tokenizer, self.name, self.price, self._actions = tokenizer, name, price, actions
        self._token_string = lru_cache(None)(self._decode_one)

    def reply(self, tokens_in: int, drawn: Sequence[Drawn]) -> Reply:
        """Return the reply with these completions of a prompt of `tokens_in` tokens."""
        tokens_out = sum(len(completion.tokens) for completion in drawn)
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
            tokens=tuple(map(self._token_string, drawn.tokens)),
            logprobs=tuple(drawn.logprobs),
            entropies=tuple(drawn.entropies),
            margins=tuple(drawn.margins),
            finish_reason="stop" if drawn.ended else "length",
        )

    def _decode_one(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return all tokens that end a turn: the tokenizer's and those of the model's configurations. `model`: any object
    with a `config` and, optionally, a `generation_config`."""
    ids = {tokenizer.eos_token_id}
    for config in (model.config, getattr(model, "generation_config", None)):
        ends = getattr(config, "eos_token_id", None)
        ids |= set(ends) if isinstance(ends, (list, tuple)) else {ends}
    return frozenset(ids - {None})


def num_drawn(request: Request) -> int:
    """Return the completions to compute: one for greedy decoding, whose samples are equal."""
    return request.num_samples if request.temperature > 0 else 1
