"""Step bills at list prices and with the endpoint's prompt cache, over all models that were asked.

    bill = slm.bill(view, proposal) + verifier_bill + llm.bill(view, reply)

The small policy's tokens, its further samples and the verifier's input are charged like the LLM's. A list price depends
on the tokens alone; the bill of an endpoint with a prompt cache depends on earlier prompts too (`PromptCache`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from r2v.config import CostConfig, Price
from r2v.data.episode import Tokens
from r2v.wire.message import Message


@dataclass(frozen=True, kw_only=True)
class StepBill:
    """Tokens, USD at list prices (`cost`) and with the prompt cache (`cached_cost`), and modelled seconds."""

    tokens: Tokens = field(default_factory=Tokens)
    cost: float = 0.0
    cached_cost: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: StepBill) -> StepBill:
        return StepBill(
            tokens=self.tokens + other.tokens,
            cost=self.cost + other.cost,
            cached_cost=self.cached_cost + other.cached_cost,
            seconds=self.seconds + other.seconds,
        )

    def __sub__(self, other: StepBill) -> StepBill:
        return StepBill(
            tokens=self.tokens - other.tokens,
            cost=self.cost - other.cost,
            cached_cost=self.cached_cost - other.cached_cost,
            seconds=self.seconds - other.seconds,
        )


def read_by_verifier(tokens: int, price: Price) -> StepBill:
    """Return the bill of a verifier that read so many tokens at once."""
    cost = tokens * price.input / 1e6
    return StepBill(tokens=Tokens(verifier_in=tokens), cost=cost, cached_cost=cost, seconds=price.seconds_per_call)


@dataclass(frozen=True, kw_only=True)
class PromptCache:
    """The prompt cache of an LLM's endpoint, as providers document theirs: the prefix shared with the episode's latest
    call is read at `read` times the prompt price, the rest is written at `write` times it. A prompt below `min_tokens`
    tokens is not cached, and one that comes later than `lifetime` seconds reads nothing. Prompts of other episodes are
    not counted on, and the LLM's reply is cached only when it is sent again."""

    usd_in: float
    """USD per million prompt tokens."""
    read: float = 0.1
    write: float = 1.25
    min_tokens: int = 1024
    lifetime: float = 300.0
    """Seconds. These four defaults are Anthropic's, used where a price table has none of a provider."""

    @classmethod
    def of(cls, usd_in: float, cost: CostConfig, read: float | None = None, write: float | None = None) -> PromptCache:
        """Return the cache of an endpoint at this price; a provider's own factors replace the usual ones."""
        return cls(
            usd_in=usd_in,
            read=cls.read if read is None else read,
            write=cls.write if write is None else write,
            min_tokens=cost.cache_min_tokens,
        )

    def split(self, tokens_in: int, shared: float, idle: float) -> tuple[int, int]:
        """Return (tokens read, tokens written) of a prompt, of which the share `shared` was in the call before, `idle`
        seconds ago."""
        # providers keep no entry below the minimum; at read >= 1 a cache saves nothing
        if tokens_in < self.min_tokens or self.read >= 1:
            return 0, 0
        shared_tokens = int(tokens_in * shared)
        cached = shared_tokens if shared_tokens >= self.min_tokens and idle <= self.lifetime else 0
        return cached, tokens_in - cached

    def saved(self, cached: int, written: int) -> float:
        """Return the USD saved against list prices; negative where writing cost more than reading saved."""
        return (cached * (1 - self.read) + written * (1 - self.write)) * self.usd_in / 1e6


def shared_prefix(before: Sequence[Message], now: Sequence[Message]) -> float:
    """Return the share of a conversation, in bytes, that repeats the first messages of an earlier one."""
    # bytes in place of tokens: a provider's tokenizer is not at hand
    same = whole = 0
    alike = True
    for index, message in enumerate(now):
        size = len(message.text.encode(errors="surrogatepass"))
        alike = alike and index < len(before) and before[index] == message
        same, whole = same + size * alike, whole + size
    return same / whole if whole else 0.0
