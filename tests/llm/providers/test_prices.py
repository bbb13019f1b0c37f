"""Prices, compared with the package's own arithmetic, and the refusals of models without one."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import Usage
from hypothesis import given
from hypothesis import strategies as st

from r2v.errors import UsageError
from r2v.llm.providers.prices import PriceFactors, rate_of
from r2v.llm.providers.registry.listed import listed_names, listed_price
from r2v.wire.exchange import TokenCounts

DAY = date(2026, 11, 23)
CURRENT = [
    ("openai", name) for name in ("gpt-6-luna", "gpt-6.1-terra", "gpt-6.1-sol", "gpt-6-astra", "gpt-5.5", "gpt-4o")
] + [
    ("anthropic", name)
    for name in ("claude-haiku-5-5", "claude-sonnet-5-5", "claude-opus-5-5", "claude-fable-5-2", "claude-haiku-4-5")
]


@pytest.mark.parametrize(("provider", "model"), CURRENT)
@given(
    fresh=st.integers(0, 400_000),
    cached=st.integers(0, 400_000),
    written=st.integers(0, 10**5),
    output=st.integers(0, 10**5),
    batch=st.booleans(),
)
def test_a_bill_is_what_the_package_makes_of_it(
    provider: str, model: str, fresh: int, cached: int, written: int, output: int, batch: bool
) -> None:
    """Cache reads and writes, batches, and prompts so long that the whole request costs more; the worst case is never
    below."""
    rate = rate_of(provider, model, day=DAY)
    hour = {"cache_write_1h_tokens": written} if provider == "anthropic" else {}
    tokens = TokenCounts(fresh=fresh, cached=cached, output=output, **({"write_1h": written} if hour else {}))
    usage = (
        Usage(
            input_tokens=tokens.input,
            cache_read_tokens=cached,
            output_tokens=output,
            cache_write_tokens=written,
            **hour,
        )
        if hour
        else Usage(input_tokens=tokens.input, cache_read_tokens=cached, output_tokens=output)
    )
    expected = get_snapshot().calc(
        usage, model, provider, None, datetime.combine(DAY, time(12), UTC), {"processing": "batch"} if batch else None
    )
    assert rate.usd(tokens, batch=batch) == pytest.approx(float(expected.total_price), rel=1e-7)
    assert rate.usd(tokens, batch=batch) <= rate.worst_case(tokens.input, output, batch=batch) * (1 + 1e-9)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_batches_cost_the_same_share_of_prompt_and_reply_whatever_the_model(provider: str) -> None:
    """One factor applies to both."""
    for name in listed_names(provider):
        price = listed_price(provider, name, DAY)
        if price is not None:
            shares = [price.usd(kind, batch=True) / price.usd(kind) for kind in ("input", "output") if price.usd(kind)]
            assert shares[0] == pytest.approx(shares[-1]), name


def test_a_million_tokens_cost_what_the_providers_publish() -> None:
    million = TokenCounts(fresh=1_000_000, output=1_000_000)
    opus = rate_of("anthropic", "claude-opus-5-5", day=DAY)
    assert (opus.usd(million, batch=False), opus.usd(million, batch=True)) == (24.0, 12.0)
    assert opus.usd(TokenCounts(write_1h=1_000_000), batch=False) == pytest.approx(8.0)
    luna = rate_of("openai", "gpt-6-luna", day=DAY)
    assert luna.usd(million, batch=False) == pytest.approx(0.2 + 0.75), "a prompt above 272,000 tokens: 2x in, 1.5x out"
    assert luna.usd(million, batch=False, requests=10) == pytest.approx(0.6), "ten prompts of 100,000"
    assert luna.context == 1_050_000


def test_prices_are_those_of_the_day() -> None:
    assert rate_of("openai", "gpt-5.6-luna", day=date(2026, 7, 29)).input == 1.0
    assert rate_of("openai", "gpt-5.6-luna", day=date(2026, 7, 30)).input == 0.2


def test_an_unknown_price_is_refused_unless_told() -> None:
    with pytest.raises(UsageError, match="no price in genai-prices .*did you mean gpt-6-luna"):
        rate_of("openai", "gpt-6-lunna")
    with pytest.raises(UsageError, match="is a model of anthropic, but teacher.provider is openai"):
        rate_of("openai", "claude-opus-5-5")
    told = rate_of("openai", "mine", 1.0, 2.0)
    million = TokenCounts(fresh=1_000_000, output=1_000_000)
    assert told.usd(million, batch=True) == 3.0, "no discount that nobody has promised"
    factors = PriceFactors(batch=0.5, cached=0.1, surcharge_above=1000, surcharge_in=2.0)
    told = rate_of("openai", "mine", 1.0, 2.0, factors=factors)
    assert told.usd(million, batch=True) == 2.0
    assert told.usd(TokenCounts(cached=500), batch=False) == pytest.approx(50e-6)


def test_another_endpoints_own_prices_are_taken_and_discounts_are_not() -> None:
    there = rate_of("openai", "anthropic/claude-opus-4.5", base_url="https://openrouter.ai/api/v1", day=DAY)
    assert (there.model, there.input, there.batch, there.cached) == ("anthropic/claude-opus-4.5", 5.0, 1.0, 1.0)
    own = rate_of("openai", "my-model", 1.0, 2.0, base_url="http://localhost:8000/v1")
    assert own.context is None and own.shape.limit == "max_tokens" and own.shape.temperature
