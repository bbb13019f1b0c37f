"""Listed prices of a provider's tokens, from the data in the package `genai-prices`.

No network is used: the package holds the data as of its release; upgrading it updates the prices. It takes about 0.3 s
of CPU to import, so it is imported with the first price.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from r2v.errors import EnvironmentFault
from r2v.llm.providers.registry.table import overlay

PACKAGE = "genai-prices"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPrice:
    """A model's prices in the package."""

    direct: Any = field(repr=False)
    """`genai_prices.types.ModelPrice` of direct calls."""
    batch: Any = field(repr=False)
    """Of batches; equal to `direct` if no batch price is listed."""
    context: int | None
    """Tokens of a prompt and its reply together."""

    def usd(self, kind: str, *, batch: bool = False, above: bool = False) -> float | None:
        """Return USD per million tokens of a kind (input, output, cache_read, cache_write, cache_write_1h); None: not
        listed. above: for prompts longer than `surcharge_above`."""
        price = getattr(self.batch if batch else self.direct, f"{kind}_mtok")
        tiers = getattr(price, "tiers", None)
        if price is None:
            return None
        return float(price if tiers is None else tiers[0].price if above else price.base)

    @property
    def surcharge_above(self) -> int | None:
        """Prompt tokens above which the whole request costs more."""
        tiers = getattr(self.direct.input_mtok, "tiers", None)
        return int(tiers[0].start) if tiers else None


def prices_version() -> str:
    """Return the source of the prices: the package with its version, and the day of the overlay."""
    try:
        package = f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        package = f"{PACKAGE} (not installed)"
    return f"{package}, overlay of {overlay()['reviewed']}"


@functools.cache
def _providers() -> Any:
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as error:
        raise EnvironmentFault(
            f"the package {PACKAGE} is missing ({error}): run `make install`, or `pip install -r requirements/core.txt`"
        ) from error
    return get_snapshot()


def listed_price(provider: str, model: str, day: date, *, base_url: str | None = None) -> ListedPrice | None:
    """Return the price of a model's text tokens on a day; None without one. base_url: an endpoint whose own price is
    used if the package lists its address (OpenRouter, Azure), otherwise the provider's."""
    snapshot = _providers()
    for source in ({"provider_api_url": base_url}, {"provider_id": provider}):
        query = {"provider_id": None, "provider_api_url": None} | source
        if not any(query.values()):
            continue
        try:
            _, listed = snapshot.find_provider_model(model, None, **query)
        except LookupError:
            continue  # not listed there
        when = datetime.combine(day, time(12), UTC)  # midday: prices change at midnight
        direct, batch = listed.get_prices(when), listed.get_prices(when, {"processing": "batch"})
        if direct.input_mtok is not None and direct.output_mtok is not None:
            return ListedPrice(direct=direct, batch=batch, context=listed.context_window)
    return None


def listed_names(provider: str) -> tuple[str, ...]:
    """Return the names of a provider's models with a price."""
    listed = next((entry for entry in _providers().providers if entry.id == provider), None)
    return () if listed is None else tuple(model.id for model in listed.models)
