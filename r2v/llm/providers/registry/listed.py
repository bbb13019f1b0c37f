"""Listed prices: what a provider asks for a model's tokens, from the data that `genai-prices` brings along.

    listed_price("openai", "gpt-6-luna", day).usd("input")          # USD per million tokens
    prices_version()                                                # genai-prices 0.2.3

No network is used: the package holds the data as of its release, and is brought up to date by upgrading it. It takes
about 0.3 s of CPU to import, so nothing imports it before a price is asked for.
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
    """A model's prices as the package tells them."""

    direct: Any = field(repr=False)
    """`genai_prices.types.ModelPrice` of direct calls."""
    batch: Any = field(repr=False)
    """Of batches; the same as `direct` where no batch price is listed."""
    context: int | None
    """Tokens of a prompt and its reply together."""

    def usd(self, kind: str, *, batch: bool = False, above: bool = False) -> float | None:
        """USD per million tokens of a kind (input, output, cache_read, cache_write, cache_write_1h); None: not listed.
        above: for prompts longer than `surcharge_above`."""
        price = getattr(self.batch if batch else self.direct, f"{kind}_mtok")
        tiers = getattr(price, "tiers", None)
        if price is None:
            return None
        return float(price if tiers is None else tiers[0].price if above else price.base)

    @property
    def surcharge_above(self) -> int | None:
        """Prompt tokens above which the whole request is dearer."""
        tiers = getattr(self.direct.input_mtok, "tiers", None)
        return int(tiers[0].start) if tiers else None


def prices_version() -> str:
    """Which prices these are: the package and its version, and the day of the overlay."""
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
    """The price of a model's text tokens on a day; None where it has none. base_url: an endpoint whose own price is
    taken where the package knows it by its address, as OpenRouter or Azure, and otherwise the provider's."""
    snapshot = _providers()
    for place in ({"provider_api_url": base_url}, {"provider_id": provider}):
        asked = {"provider_id": None, "provider_api_url": None} | place
        if not any(asked.values()):
            continue
        try:
            _, found = snapshot.find_provider_model(model, None, **asked)
        except LookupError:
            continue
        when = datetime.combine(day, time(12), UTC)
        direct, batch = found.get_prices(when), found.get_prices(when, {"processing": "batch"})
        if direct.input_mtok is not None and direct.output_mtok is not None:
            return ListedPrice(direct=direct, batch=batch, context=found.context_window)
    return None


def listed_names(provider: str) -> tuple[str, ...]:
    """The names of a provider's models that have a price."""
    found = next((one for one in _providers().providers if one.id == provider), None)
    return () if found is None else tuple(model.id for model in found.models)
