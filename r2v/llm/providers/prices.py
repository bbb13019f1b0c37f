"""Token prices: the rate of a provider's model, and the cost of its requests in USD.

    rate = rate_of("anthropic", "claude-sonnet-5-5")        # an alias; rate.model is the name that the API takes
    rate.usd(TokenCounts(fresh=1000, output=200), batch=True)

Prices come from the package `genai-prices` (`r2v.llm.providers.registry.listed`). A model without a listed price is
refused unless `teacher.usd_in` and `teacher.usd_out` give one: with a guessed price no budget would hold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
    """Discounts and surcharges as factors on a price; None in an override: as listed."""

    batch: float | None = None
    """On every token in a provider batch."""
    cached: float | None = None
    """On a prompt token read from the prompt cache."""
    write_5m: float | None = None
    """On a prompt token written to the cache of five minutes."""
    write_1h: float | None = None
    """On a prompt token written to the cache of an hour."""
    surcharge_above: int | None = None
    """Prompt tokens above which the whole request costs more."""
    surcharge_in: float | None = None
    """On every prompt token of such a request."""
    surcharge_out: float | None = None
    """On every reply token of such a request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """The price of one model: `input` and `output` in USD per million tokens, the other fields factors on them."""

    model: str
    """The name that the provider's API takes."""
    input: float
    output: float
    batch: float
    cached: float
    write_5m: float
    write_1h: float
    batch_cached: float | None = None
    """Factor of a cache read in a batch, on the batch's prompt price; None: as in a direct call."""
    surcharge_above: int | None = None
    """Prompt tokens above which the whole request costs more; None: no such length."""
    surcharge_in: float = 1.0
    surcharge_out: float = 1.0
    context: int | None = None
    """Most tokens of a prompt and its reply together; None: unknown."""
    shape: RequestShape = RequestShape()
    """Parameters of a request to this model."""

    def usd(self, tokens: TokenCounts, *, batch: bool, requests: float = 1) -> float:
        """Return the USD billed for these tokens, in a provider batch or by direct calls. requests: the number of
        requests of about equal length that share the tokens; a surcharge depends on the length of each."""
        cached = self.cached if self.batch_cached is None or not batch else self.batch_cached
        prompt = (
            tokens.fresh + cached * tokens.cached + self.write_5m * tokens.write_5m + self.write_1h * tokens.write_1h
        )
        return self._usd(prompt, tokens.output, tokens.input / requests) * (self.batch if batch else 1.0)

    def worst_case(self, tokens_in: int, tokens_out: int, *, batch: bool) -> float:
        """Return the most USD that a request can be billed: every prompt token written to the dearest cache."""
        dearest = max(1.0, self.cached, self.batch_cached or 0.0, self.write_5m, self.write_1h)
        return self._usd(tokens_in * dearest, tokens_out, tokens_in) * (self.batch if batch else 1.0)

    def listed(self, tokens: TokenCounts) -> float:
        """Return the list price in USD, without discounts: it depends on the tokens alone, not on batch or cache."""
        return self._usd(tokens.input, tokens.output, tokens.input)

    def _usd(self, prompt: float, output: int, length: float) -> float:
        """Return the USD of `prompt` full-price tokens and `output` tokens, in requests of `length` prompt tokens."""
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
    """Return the price of a model under any of its names.

    usd_in, usd_out: USD per million tokens, in place of the listed ones; factors: discounts and surcharges, likewise.
    base_url: another endpoint than the provider's own. The model's name is then used unchanged, and no discounts for
    batches and caches are assumed: the endpoint may give none, and a cap that relied on them would be crossed.
    accepts: the parameters of its requests; None: from the registry. day: of the prices; None: today. keys, name: the
    settings of price and model, for errors. Raise UsageError for a model without a price, or of another provider.
    """
    model_name = model if base_url is not None else api_name(provider, model)
    day = day or today()
    price = listed_price(provider, api_name(provider, model), day, base_url=base_url)
    if price is None and (usd_in is None or usd_out is None):
        raise UsageError(_without_price(provider, model, day, base_url, keys, name))
    listed = _factors(provider, price)
    if base_url is not None:
        listed |= {key: max(1.0, listed[key] or 0.0) for key in ("batch", "cached", "write_5m", "write_1h")}
        listed["batch_cached"] = None
    overrides = {} if factors is None else asdict(factors)
    given: dict[str, Any] = {key: value for key, value in overrides.items() if value is not None}
    if "cached" in given:  # the user's factor holds for batches too
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
        **listed | given,
    )


def _required(price: ListedPrice | None, kind: str) -> float:
    usd = None if price is None else price.usd(kind)
    assert usd is not None
    return usd


def _ratio(usd: float, of: float) -> float:
    """Return a factor, rounded to remove the noise of dividing two decimals."""
    return round(usd / of, 9) if of else 1.0


def _factors(provider: str, price: ListedPrice | None) -> dict[str, float | int | None]:
    """Return a price's discounts and surcharges as factors on direct calls. Without a price: the provider's usual batch
    discount, and caches at the full price."""
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
    factors: dict[str, float | int | None] = {
        # equal prices: the package lists none for batches
        "batch": usual if batch == direct else _ratio(batch, direct),
        "cached": 1.0 if cached is None else cached,
        "write_5m": write_5m,
        "write_1h": write_5m if write_1h is None else write_1h,
        "batch_cached": None if batch == direct or cached is None else share("cache_read", of_batch=True),
    }
    if price.surcharge_above is not None:
        factors |= {"surcharge_above": price.surcharge_above}
        factors |= {
            key: _ratio(price.usd(kind, above=True) or 0.0, _required(price, kind))
            for key, kind in (("surcharge_in", "input"), ("surcharge_out", "output"))
        }
    return factors


def _without_price(provider: str, model: str, day: date, base_url: str | None, keys: str, name: str) -> str:
    remedy = f"give {keys}, USD per million tokens"
    missing = f"{name}={model}: no price in {prices_version()}"
    if base_url is not None or provider not in overlay()["accepts"]:
        return f"{missing}; {remedy} (0 if they are free)"
    for other in overlay()["accepts"]:
        if other != provider and listed_price(other, api_name(other, model), day) is not None:
            key = name.replace("model_name", "provider").replace("model", "provider")
            return f"{name}={model}: is a model of {other}, but {key} is {provider}"
    return f"{missing}; {nearest(model, [*own_names(provider), *listed_names(provider)])} (or {remedy})"
