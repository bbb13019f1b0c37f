"""What is said in an episode, with all that learning from it needs: token ids, never made again from text.

A `Speaker` answers waves of questions for one role. What one conversation asks at the same moment (its K hints) is one
question, so that a wave can tell when nobody has anything to add. Every draw is keyed, and log-probabilities are those
that an update of the same policy finds (`r2v.hrl.algorithm.logprobs`): the ratio of PPO begins at 1, also where a
cache makes
bfloat16 round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from r2v.hrl.algorithm.logprobs import lay, of_completions
from r2v.hrl.models.roles import Roles, Speaking
from r2v.llm.local.decode import Draw, Drawn, generate
from r2v.llm.local.prefix_cache import Prefixes
from r2v.randomness import Key

_DIGITS = 9
"""That log-probabilities are rounded to: far above what a wave's composition changes in float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One segment to be said. Token i is drawn under `(*key, i)`; temperature 0 is greedy and draws nothing."""

    prompt: tuple[int, ...]
    key: Key
    max_tokens: int
    temperature: float = 1.0
    weighed: bool = True
    """Whether its log-probabilities are wanted; they cost another pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """What was said upon a prompt, by which version of the policy."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """With the end token, where one was drawn."""
    logprobs: tuple[float, ...]
    """Of each token, in nats, untempered; empty where none were asked for."""
    ended: bool
    """False: cut off at the most tokens that were allowed."""
    version: int
    text: str
    """For people, checkers and prompts; without special tokens."""


class Speaker:
    """One role's voice: a backend whose questions are what a conversation asks at once.

    Its model's weights must stay as they are while it is in use: it remembers prompts that it has read. A wave may be
    of any size, `in_flight` bounds the completions that are generated together. It holds the role's base while it
    speaks, so that two of them on a shared base never speak with each other's adapter.
    """

    max_batch = 1 << 30

    def __init__(self, roles: Roles, role: Speaking, version: int = 0, in_flight: int = 64) -> None:
        self.roles, self.role, self.version, self.in_flight = roles, role, version, in_flight
        self.passes = 0
        """Batched generations so far."""
        with roles.using(role) as model:
            self._end_ids = _end_ids(model, roles.tokenizer)
            self._prefixes = Prefixes(model) if Prefixes.serve(model) else None
        pad = roles.tokenizer.pad_token_id
        self._pad_id: int = min(self._end_ids) if pad is None else pad

    def answer(self, questions: Sequence[tuple[Ask, ...]]) -> list[tuple[Segment, ...]]:
        """What is said to every question, in order."""
        said = iter(self.say([ask for asks in questions for ask in asks]))
        return [tuple(next(said) for _ in asks) for asks in questions]

    def say(self, asks: Sequence[Ask]) -> list[Segment]:
        """One segment per ask, in order, however many."""
        found: dict[int, Segment] = {}
        for batch in _batches(asks, self.in_flight):
            found.update(zip(batch, self._say([asks[i] for i in batch]), strict=True))
        return [found[i] for i in range(len(asks))]

    def _say(self, asks: Sequence[Ask]) -> Iterator[Segment]:
        prompts = {prompt: place for place, prompt in enumerate(dict.fromkeys(ask.prompt for ask in asks))}
        draws = [
            Draw(
                prompt=prompts[ask.prompt],
                key=ask.key,
                temperature=ask.temperature,
                top_p=1.0,
                max_tokens=ask.max_tokens,
            )
            for ask in asks
        ]
        with self.roles.using(self.role) as model:
            if model.device.type == "cpu":
                torch.set_num_threads(1)  # each thread has its own number
            drawn = generate(
                model, list(prompts), draws, end_ids=self._end_ids, pad_id=self._pad_id, prefixes=self._prefixes
            )
            logprobs = self._weighed(model, asks, drawn)
        self.passes += 1
        for place, (ask, one) in enumerate(zip(asks, drawn, strict=True)):
            text = self.roles.tokenizer.decode(one.tokens, skip_special_tokens=True)
            yield Segment(
                prompt=ask.prompt,
                tokens=tuple(one.tokens),
                logprobs=logprobs.get(place, ()),
                ended=one.ended,
                version=self.version,
                text=text,
            )

    def _weighed(self, model: Any, asks: Sequence[Ask], drawn: Sequence[Drawn]) -> dict[int, tuple[float, ...]]:
        """Log-probabilities by place in the batch, of those that are to have them."""
        places = [place for place, ask in enumerate(asks) if ask.weighed]
        if not places:
            return {}
        rows = lay([asks[i].prompt for i in places], [drawn[i].tokens for i in places], device=model.device)
        with torch.no_grad():
            logprobs = of_completions(model, rows).double().cpu()
        return {
            place: tuple(round(value, _DIGITS) + 0.0 for value in row[mask].tolist())
            for place, row, mask in zip(places, logprobs, rows.completion.cpu(), strict=True)
        }


def _batches(asks: Sequence[Ask], most: int) -> Iterator[list[int]]:
    """Asks by length of prompt, at most `most` at a time; in which order they came decides nothing, to the last bit."""
    order = sorted(range(len(asks)), key=lambda i: (len(asks[i].prompt), asks[i].prompt, str(asks[i].key)))
    yield from (order[start : start + most] for start in range(0, len(order), most))


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a reply: the tokenizer's, and those the model was published with."""
    ids = {tokenizer.eos_token_id}
    for config in (model.config, getattr(model, "generation_config", None)):
        ends = getattr(config, "eos_token_id", None)
        ids |= set(ends) if isinstance(ends, (list, tuple)) else {ends}
    return frozenset(ids - {None})
