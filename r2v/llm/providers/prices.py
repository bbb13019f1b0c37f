"""Token prices: what a provider's model costs, and the arithmetic over it.

    rate = rate_of("anthropic", "claude-sonnet-5-5")        # an alias; rate.model is the name that the API takes
    rate.usd(TokenCounts(fresh=1000, output=200), batch=True)

The figures are those of the package `genai-prices` (`r2v.llm.providers.registry.listed`). A model that it lacks is
refused unless its price is given by `teacher.usd_in` and `teacher.usd_out`: a guess would make every budget a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date
from typing import Any

from r2v.errors import UsageError, nearest
from r2v.llm.providers.registry.accepts import Accepts, accepts_of
from r2v.llm.providers.registry.lifecycle import today
from r2v.llm.providers.registry.listed import ListedPrice, listed_names, listed_price, prices_version
from r2v.llm.providers.registry.shape import RequestShape, shape_of
from r2v.llm.providers.registry.table import api_name, overlay, own_names
from r2v.wire.exchange import TokenCounts

__all__ = ["PriceFactors", "Rate", "prices_version", "rate_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceFactors:
    """What changes a price, as factors on it. None, where one is given in place of the listed ones: as listed."""

    batch: float | None = None
    """A token in a provider batch."""
    cached: float | None = None
    """A prompt token read from the prompt cache."""
    write_5m: float | None = None
    """A prompt token written to the shorter cache."""
    write_1h: float | None = None
    """A prompt token written to the cache that lasts an hour."""
    surcharge_above: int | None = None
    """Prompt tokens above which the whole request costs more."""
    surcharge_in: float | None = None
    """Every prompt token of such a request."""
    surcharge_out: float | None = None
    """Every reply token of such a request."""


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
    batch_cached: float | None = None
    """What reading the cache costs in a batch, as a factor on the batch's prompt price; None: as in a direct call."""
    surcharge_above: int | None = None
    """Prompt tokens above which the whole request costs more; None: no such length."""
    surcharge_in: float = 1.0
    surcharge_out: float = 1.0
    context: int | None = None
    """Tokens of a prompt and its reply together, at most; None where that is not known."""
    shape: RequestShape = RequestShape()
    """What a request to it holds."""

    def usd(self, tokens: TokenCounts, *, batch: bool, requests: float = 1) -> float:
        """What these tokens are billed, in a provider batch or by a direct call. requests: so many requests of about
        the same length have these tokens together."""
        cached = self.cached if self.batch_cached is None or not batch else self.batch_cached
        prompt = (
            tokens.fresh + cached * tokens.cached + self.write_5m * tokens.write_5m + self.write_1h * tokens.write_1h
        )
        return self._usd(prompt, tokens.output, tokens.input / requests) * (self.batch if batch else 1.0)

    def worst_case(self, tokens_in: int, tokens_out: int, *, batch: bool) -> float:
        """The most USD that a request can be billed: every prompt token written to the dearest cache."""
        dearest = max(1.0, self.cached, self.batch_cached or 0.0, self.write_5m, self.write_1h)
        return self._usd(tokens_in * dearest, tokens_out, tokens_in) * (self.batch if batch else 1.0)

    def listed(self, tokens: TokenCounts) -> float:
        """The price without any discount: a property of the tokens, whichever way the answer came."""
        return self._usd(tokens.input, tokens.output, tokens.input)

    def _usd(self, prompt: float, output: int, length: float) -> float:
        """What a request with a prompt of this length costs: `prompt` tokens at the full price, and its output."""
        usd_in, usd_out = prompt * self.input, output * self.output
        if self.surcharge_above is not None and length > self.surcharge_above:
            usd_in, usd_out = usd_in * self.surcharge_in, usd_out * self.surcharge_out
        return (usd_in + usd_out) / 1e6


def rate_of(
    provider: str,
    model: str,
    usd_in: float | None = None,
    usd_out: float | None = None,
    *,
    base_url: str | None = None,
    factors: PriceFactors | None = None,
    accepts: Accepts | None = None,
    day: date | None = None,
    keys: str = "teacher.usd_in and teacher.usd_out",
    name: str = "teacher.model_name",
) -> Rate:
    """The price of a model under any of its names.

    usd_in, usd_out: USD per million tokens, in place of the listed ones; factors: discounts and surcharges, likewise.
    base_url: the model is served by another endpoint than the provider's own. Its name is then taken as it is, and
    discounts for batches and caches are not assumed: the endpoint may give none, and a cap that counted on them would
    be crossed. accepts: what its requests may hold, None: as the registry knows. day: whose prices, None: today's.
    keys, name: what errors call the keys that give a price, and the model's.
    Raises UsageError for a model that is neither listed nor priced, or that belongs to another provider.
    """
    model_name = model if base_url is not None else api_name(provider, model)
    day = day or today()
    price = listed_price(provider, api_name(provider, model), day, base_url=base_url)
    if price is None and (usd_in is None or usd_out is None):
        raise UsageError(_without_price(provider, model, day, base_url, keys, name))
    found = _factors(provider, price)
    if base_url is not None:
        found |= {key: max(1.0, found[key] or 0.0) for key in ("batch", "cached", "write_5m", "write_1h")}
        found["batch_cached"] = None
    given: dict[str, Any] = (
        {} if factors is None else {item.name: getattr(factors, item.name) for item in fields(factors)}
    )
    given = {key: value for key, value in given.items() if value is not None}
    if "cached" in given:
        given["batch_cached"] = None
    accepts = accepts or accepts_of(provider, model, base_url=base_url)
    if not accepts.batch:
        given["batch"] = 1.0
    return Rate(
        model=model_name,
        input=usd_in if usd_in is not None else _required(price, "input"),
        output=usd_out if usd_out is not None else _required(price, "output"),
        context=None if price is None else price.context,
        shape=shape_of(accepts),
        **found | given,
    )


def _required(price: ListedPrice | None, kind: str) -> float:
    usd = None if price is None else price.usd(kind)
    assert usd is not None
    return usd


def _ratio(usd: float, of: float) -> float:
    """A factor, without the noise that dividing two decimals adds."""
    return round(usd / of, 9) if of else 1.0


def _factors(provider: str, price: ListedPrice | None) -> dict[str, float | int | None]:
    """A price's discounts and surcharges as factors on the prices of direct calls. Without a price: the provider's
    batch discount, and caches at the full price."""
    usual = overlay()["batch"].get(provider, 1.0)
    if price is None:
        return {"batch": usual, "cached": 1.0, "write_5m": 1.0, "write_1h": 1.0}
    direct, batch = _required(price, "input"), price.usd("input", batch=True)
    assert batch is not None

    def share(kind: str, *, of_batch: bool = False) -> float | None:
        usd = price.usd(kind, batch=of_batch)
        return None if usd is None else _ratio(usd, batch if of_batch else direct)

    write_5m, cached = share("cache_write"), share("cache_read")
    write_5m, write_1h = 1.0 if write_5m is None else write_5m, share("cache_write_1h")
    found: dict[str, float | int | None] = {
        "batch": usual if batch == direct else _ratio(batch, direct),
        "cached": 1.0 if cached is None else cached,
        "write_5m": write_5m,
        "write_1h": write_5m if write_1h is None else write_1h,
        "batch_cached": None if batch == direct or cached is None else share("cache_read", of_batch=True),
    }
    if price.surcharge_above is not None:
        found |= {"surcharge_above": price.surcharge_above}
        found |= {
            key: _ratio(price.usd(kind, above=True) or 0.0, _required(price, kind))
            for key, kind in (("surcharge_in", "input"), ("surcharge_out", "output"))
        }
    return found


def _without_price(provider: str, model: str, day: date, base_url: str | None, keys: str, name: str) -> str:
    remedy = f"give {keys}, USD per million tokens"
    missing = f"{name}={model}: no price in {prices_version()}"
    if base_url is not None or provider not in overlay()["accepts"]:
        return f"{missing}; {remedy} (0 where nobody bills them)"
    for other in overlay()["accepts"]:
        if other != provider and listed_price(other, api_name(other, model), day) is not None:
            key = name.replace("model_name", "provider").replace("model", "provider")
            return f"{name}={model}: is of {other}, {key} is {provider}"
    return f"{missing}; {nearest(model, [*own_names(provider), *listed_names(provider)])} (or {remedy})"
