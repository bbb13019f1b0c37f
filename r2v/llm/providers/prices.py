"""Token prices: the dated table `prices.yaml`, and the arithmetic over it.

    rate = rate_of("anthropic", "claude-3-5-sonnet")        # an alias; rate.model is the name that the API takes
    rate.usd(TokenCounts(fresh=1000, output=200), batch=True)

A model that the table lacks is refused unless its price is given by `teacher.usd_in` and `teacher.usd_out`: a guess
would make every budget a guess.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.errors import UsageError, nearest

PRICE_TABLE = Path(__file__).with_name("prices.yaml")
_NO_DISCOUNT = {"batch": 1.0, "cached": 1.0, "write_5m": 1.0, "write_1h": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCounts:
    """The tokens of one answer, by what they cost. Each prompt token is in exactly one of the first four."""

    fresh: int = 0
    """Prompt tokens at the full price."""
    cached: int = 0
    """Read from the provider's prompt cache."""
    write_5m: int = 0
    """Written to a cache that lasts five minutes."""
    write_1h: int = 0
    """Written to a cache that lasts an hour."""
    output: int = 0

    @property
    def input(self) -> int:
        """All prompt tokens."""
        return self.fresh + self.cached + self.write_5m + self.write_1h


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """One model's price: `input` and `output` in USD per million tokens, the others are factors on them."""

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
    context: int | None = None
    """Tokens of a prompt and its reply together, at most; None where that is not known."""

    def usd(self, tokens: TokenCounts, *, batch: bool) -> float:
        """What these tokens are billed, in a provider batch or by a direct call."""
        prompt = (
            tokens.fresh
            + self.cached * tokens.cached
            + self.write_5m * tokens.write_5m
            + self.write_1h * tokens.write_1h
        )
        return (prompt * self.input + tokens.output * self.output) / 1e6 * (self.batch if batch else 1.0)

    def worst_case(self, tokens_in: int, tokens_out: int, *, batch: bool) -> float:
        """The most USD that a request can be billed: every prompt token written to the dearest cache."""
        dearest = max(1.0, self.write_5m, self.write_1h)
        usd = (tokens_in * self.input * dearest + tokens_out * self.output) / 1e6
        return usd * (self.batch if batch else 1.0)

    def listed(self, tokens: TokenCounts) -> float:
        """The price without any discount: a property of the tokens, whichever way the answer came."""
        return (tokens.input * self.input + tokens.output * self.output) / 1e6


@functools.cache
def price_table() -> dict[str, Any]:
    """The price file."""
    from yaml import safe_load

    content: dict[str, Any] = safe_load(PRICE_TABLE.read_text())
    return content


def rate_of(
    provider: str, model: str, usd_in: float | None = None, usd_out: float | None = None, *, base_url: str | None = None
) -> Rate:
    """The price of a model under any of its names.

    usd_in, usd_out: USD per million tokens, in place of the table's. base_url: the model is served by another endpoint
    than the provider's own. Its name is then taken as it is, and discounts for batches and caches are not assumed: the
    endpoint may give none, and a cap that counted on them would be crossed.
    Raises UsageError for a model that is neither listed nor priced, or that belongs to another provider.
    """
    prices = price_table()
    names = {
        alias: name
        for name, row in prices["models"].items()
        for alias in (name, *row.get("aliases", ()), *row.get("snapshots", ()))
    }
    row = dict(prices["models"].get(names.get(model), {}))
    if row and row["provider"] != provider:
        if base_url is None and provider in prices["providers"]:
            raise UsageError(f"teacher.model_name={model}: is of {row['provider']}, teacher.provider is {provider}")
        row = {}
    if not row and (usd_in is None or usd_out is None):
        raise UsageError(_without_price(provider, model, names, base_url))
    factors = prices["providers"].get(provider, _NO_DISCOUNT) | {
        name: value for name, value in row.items() if name in ("cached", "write_5m", "write_1h", "default_sampling")
    }
    if base_url is not None:
        factors |= {name: max(1.0, factors[name]) for name in _NO_DISCOUNT}
    is_alias = base_url is None and model in row.get("aliases", ())
    return Rate(
        model=names[model] if is_alias else model,
        input=row["input"] if usd_in is None else usd_in,
        output=row["output"] if usd_out is None else usd_out,
        context=row.get("context"),
        **factors,
    )


def _without_price(provider: str, model: str, names: dict[str, str], base_url: str | None) -> str:
    prices = price_table()
    remedy = "give teacher.usd_in and teacher.usd_out, USD per million tokens"
    missing = f"teacher.model_name={model}: no price in the table of {prices['version']}"
    if base_url is not None or provider not in prices["providers"]:
        return f"{missing}; {remedy} (0 where nobody bills them)"
    listed = [name for name, known in names.items() if prices["models"][known]["provider"] == provider]
    return f"{missing}; {nearest(model, listed)} (or {remedy})"
