"""Lifecycles: dates equal to the SDKs' own, successors that are current, and the messages."""

from __future__ import annotations

import importlib.util
import re
from datetime import date, datetime
from pathlib import Path

import pytest

from r2v.errors import UsageError
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.registry.lifecycle import lifecycle_of, living_successor, require_living
from r2v.llm.providers.registry.listed import listed_price
from r2v.llm.providers.registry.table import overlay

TODAY = date(2026, 11, 23)
CONFIGS = Path(__file__).parents[4] / "configs"


def source(module: str, *parts: str) -> str:
    """Return the text of an installed SDK's module without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent.joinpath(*parts).with_suffix(".py").read_text()


def sdk_dates() -> list[tuple[str, str, date]]:
    """Return (provider, model, day) of every model whose end the installed SDKs announce."""
    found = []
    text = source("openai", "types", "shared", "chat_model").partition("Deprecated values:")[2]
    for item in text.split("\n- "):
        names, _, told = item.partition(":")
        if day := re.match(r"\s+Announced shutdown date:\s+(\d{4}-\d\d-\d\d)", told):
            found += [("openai", name, date.fromisoformat(day[1])) for name in re.findall(r'"([^"]+)"', names)]
    table = (
        source("anthropic", "resources", "messages", "messages").partition("DEPRECATED_MODELS = {")[2].partition("}")[0]
    )
    for name, day in re.findall(r'"([^"]+)": "([^"]+)"', table):
        plain = re.sub(r"(\d)(st|nd|rd|th)", r"\1", day)
        found.append(("anthropic", name, datetime.strptime(plain, "%B %d, %Y").date()))
    return found


def test_every_end_that_the_installed_sdks_announce_stands_in_the_overlay() -> None:
    """An upgrade of an SDK that announces another end fails here until the overlay has it too."""
    dates = [row for row in sdk_dates() if "audio" not in row[1]]
    assert len(dates) > 60
    wrong = {row: lifecycle_of(*row[:2]).retires for row in dates if lifecycle_of(*row[:2]).retires != row[2]}
    assert wrong == {}


def test_every_successor_lives_and_has_a_price() -> None:
    """No successor has ended or has an announced end, so that every chain ends."""
    for provider, days in overlay()["retirements"].items():
        for successors in days.values():
            for successor in successors:
                assert lifecycle_of(provider, successor).retires is None, successor
                assert listed_price(provider, successor, TODAY) is not None, successor


def test_a_retired_model_is_refused_by_its_successors_name_and_a_dying_one_is_a_warning() -> None:
    with pytest.raises(
        UsageError, match=r"claude-3-5-sonnet \(claude-3-5-sonnet-20241022\): anthropic retired it on 2025-10-28"
    ):
        require_living("teacher.model_name", "anthropic", "claude-3-5-sonnet", TODAY)
    with pytest.raises(UsageError, match="its successor is gpt-6.1-sol"):
        require_living("teacher.model_name", "openai", "gpt-4-turbo", TODAY)
    said = require_living("teacher.model_name", "openai", "o3", date(2026, 11, 22))
    assert said == "o3 retires in 19 days, on 2026-12-11; its successor is gpt-6.1-sol"
    assert require_living("teacher.model_name", "openai", "gpt-6-luna", TODAY) is None
    assert living_successor("openai", "gpt-5", date(2026, 12, 11)) == "gpt-6.1-sol"
    assert living_successor("openai", "gpt-5", date(2026, 12, 10)) == "gpt-5"


def test_every_model_that_a_configuration_names_lives_and_has_a_price() -> None:
    named = set()
    for path in CONFIGS.rglob("*.yaml"):
        named |= set(re.findall(r"teacher: \{provider: (openai|anthropic), model_name: ([\w.-]+)", path.read_text()))
    assert len(named) >= 2
    for provider, model in named:
        assert rate_of(provider, model).input > 0 and lifecycle_of(provider, model).retires is None
