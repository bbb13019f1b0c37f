"""Profiles: settings for a size of model, beneath the configuration: defaults < profile < file < flags < overrides.

    profile: lora-1b
    policy: {model_name: meta-llama/Llama-3.2-1B-Instruct}

They stand in profiles.toml. The defaults are those of the bundled student, which is `tiny`. A batch is 16 sequences an
update throughout, in micro-batches of one, which fit the card that each profile names (a test plans them). On a GPU,
models above 100 M parameters train in bfloat16 with gradient checkpointing whatever the profile.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AUTO, TINY = "auto", "tiny"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Settings of one size of model."""

    name: str
    """As `profile` spells it."""
    for_models: str
    """Sizes that it is meant for, in words."""
    card: str
    """The smallest GPU that all of its stages fit at the largest of these sizes, as `r2v plan --gpu` takes it."""
    largest: float = 0
    """Parameters of the largest model that is given this profile by itself; 0: it is only given by name."""
    values: dict[str, Any] = field(default_factory=dict)
    """Sections with the keys that it sets."""


_FILE = tomllib.loads(Path(__file__).with_name("profiles.toml").read_text())


def _sections(values: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted key as sections with keys."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return tree


def _profile(name: str, *, values: dict[str, Any] | None = None, **others: Any) -> Profile:
    whole = {} if values is None else _sections({**_FILE["every_size"], **values})
    return Profile(name=name, values=whole, **others)


PROFILES: dict[str, Profile] = {name: _profile(name, **row) for name, row in _FILE["sizes"].items()}
"""Every profile, the smallest first."""

PAID_SMALL = "paid-small"
"""A whole pipeline for little money; it goes with any size of model: paid-small, or paid-small+lora-8b."""
PROFILE_NAMES = (AUTO, *PROFILES, PAID_SMALL, *(f"{PAID_SMALL}+{name}" for name in PROFILES))
"""All that `profile` may say."""


def values_of(profile: str) -> list[dict[str, Any]]:
    """The settings that a profile's name stands for, each beneath the next."""
    return [
        _sections(_FILE["paid_small"]) if name == PAID_SMALL else PROFILES[name].values for name in profile.split("+")
    ]
