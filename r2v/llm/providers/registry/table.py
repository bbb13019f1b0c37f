"""The overlay: our own dated file about models, beside the prices that a package keeps."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import plain, read_file

OVERLAY = Path(__file__).with_name("overlay.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnKey:
    """A provider's own key: its name as people write it, the variable of the key, the host that the key belongs to."""

    name: str
    variable: str
    host: str


@functools.cache
def overlay() -> dict[str, Any]:
    """The file's content."""
    content: dict[str, Any] = plain(read_file(OVERLAY).value)
    return content


def api_name(provider: str, model: str) -> str:
    """The name that the provider's API takes, for a name of ours or of the API."""
    return str(overlay()["aliases"].get(provider, {}).get(model, model))


@functools.cache
def own_keys() -> dict[str, OwnKey]:
    """By provider: its own key."""
    return {provider: OwnKey(**fields) for provider, fields in overlay()["keys"].items()}


def own_names(provider: str) -> tuple[str, ...]:
    """Names of ours for models of this provider."""
    return tuple(overlay()["aliases"].get(provider, ()))
