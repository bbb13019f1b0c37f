"""The overlay: R2V's dated file on models, which complements the prices of a package."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import plain, read_file

OVERLAY = Path(__file__).with_name("overlay.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnKey:
    """A provider's own key: the provider's name, the variable of the key, and the host the key belongs to."""

    name: str
    variable: str
    host: str


@functools.cache
def overlay() -> dict[str, Any]:
    """Return the file's content."""
    content: dict[str, Any] = plain(read_file(OVERLAY).value)
    return content


def api_name(provider: str, model: str) -> str:
    """Return the name in the provider's API, for an alias or for that name itself."""
    return str(overlay()["aliases"].get(provider, {}).get(model, model))


@functools.cache
def own_keys() -> dict[str, OwnKey]:
    """Return each provider's own key."""
    return {provider: OwnKey(**fields) for provider, fields in overlay()["keys"].items()}


def own_names(provider: str) -> tuple[str, ...]:
    """Return the aliases of a provider's models."""
    return tuple(overlay()["aliases"].get(provider, ()))
