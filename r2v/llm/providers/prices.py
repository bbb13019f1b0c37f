"""What tokens cost: the dated table `prices.yaml`, and the arithmetic over it.

    rate = rate_of("anthropic", "claude-3-5-sonnet")        # an alias; rate.model is what the API is asked for
    rate.usd(Tokens(fresh=1000, output=200), batch=True)

A model that the table lacks is refused unless its price is given: a guess would make every budget a guess.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.errors import UsageError, nearest

TABLE = Path(__file__).with_name("prices.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """The tokens of one answer, by what they cost. Prompt tokens are in exactly one of the first four."""

    fresh: int = 0
    cached: int = 0
    write_5m: int = 0
    write_1h: int = 0
    output: int = 0

    @property
    def input(self) -> int:
        """All prompt tokens."""
        return self.fresh + self.cached + self.write_5m + self.write_1h


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """One model's price. `input` and `output` in USD per million tokens; the others are factors on them."""

    model: str
    """The name that the provider's API takes."""
    input: float
    output: float
    batch: float
    cached: float
    write_5m: float
    write_1h: float
    default_sampling: bool = False
    """The model takes neither temperature nor top_p."""

    def usd(self, tokens: Tokens, *, batch: bool) -> float:
        """What these tokens are billed, in a provider batch or called directly."""
        prompt = (
            tokens.fresh
            + self.cached * tokens.cached
            + self.write_5m * tokens.write_5m
            + self.write_1h * tokens.write_1h
        )
        return (prompt * self.input + tokens.output * self.output) / 1e6 * (self.batch if batch else 1.0)

    def worst(self, tokens_in: int, tokens_out: int, *, batch: bool) -> float:
        """The most that a request can be billed: every prompt token written to the dearest cache."""
        dearest = max(1.0, self.write_5m, self.write_1h)
        usd = (tokens_in * self.input * dearest + tokens_out * self.output) / 1e6
        return usd * (self.batch if batch else 1.0)

    def listed(self, tokens: Tokens) -> float:
        """The price without any discount: a property of the tokens, whichever way the answer was had."""
        return (tokens.input * self.input + tokens.output * self.output) / 1e6


@functools.cache
def table() -> dict[str, Any]:
    """The price file."""
    from yaml import safe_load

    content: dict[str, Any] = safe_load(TABLE.read_text())
    return content


def rate_of(provider: str, model: str, usd_in: float | None = None, usd_out: float | None = None) -> Rate:
    """The price of a model under any of its names; `usd_in` and `usd_out` (USD per million tokens) stand in for
    what the table says. Raises UsageError for a model that is neither listed nor priced, or is another
    provider's."""
    prices = table()
    names = {
        alias: name
        for name, row in prices["models"].items()
        for alias in (name, *row.get("aliases", ()), *row.get("snapshots", ()))
    }
    row = dict(prices["models"].get(names.get(model), {}))
    if row and row["provider"] != provider:
        raise UsageError(f"teacher.model_name={model}: is of {row['provider']}, teacher.provider is {provider}")
    if not row and (usd_in is None or usd_out is None):
        own = [name for name, known in names.items() if prices["models"][known]["provider"] == provider]
        raise UsageError(
            f"teacher.model_name={model}: no price in the table of {prices['version']}; "
            f"{nearest(model, own)} (or give teacher.usd_in and teacher.usd_out, USD per million tokens)"
        )
    factors = prices["providers"][provider] | {
        name: value for name, value in row.items() if name in ("cached", "write_5m", "write_1h", "default_sampling")
    }
    asked = names[model] if model in row.get("aliases", ()) else model
    return Rate(
        model=asked,
        input=row["input"] if usd_in is None else usd_in,
        output=row["output"] if usd_out is None else usd_out,
        **factors,
    )
