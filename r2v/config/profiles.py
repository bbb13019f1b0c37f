"""Profiles: settings for a size of model. Precedence: defaults < profile < file < flags < overrides.

    profile: lora-1b
    policy: {model_name: meta-llama/Llama-3.2-1B-Instruct}

They are listed in profiles.toml. The defaults are those of the bundled student, `tiny`. All use 16 sequences per update
in micro-batches of one, which fit the GPU that each profile names (a test plans them). On a GPU, models above 100 M
parameters train in bfloat16 with gradient checkpointing under every profile.
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
    """Value of `profile`."""
    for_models: str
    """Model sizes that it is meant for, as text."""
    card: str
    """The smallest GPU that fits all stages at the largest of these sizes, as a value of `r2v plan --gpu`."""
    largest: float = 0
    """Parameters of the largest model that gets this profile automatically; 0: only by name."""
    values: dict[str, Any] = field(default_factory=dict)
    """The keys that it sets, by section."""


_FILE = tomllib.loads(Path(__file__).with_name("profiles.toml").read_text())


def _sections(values: dict[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as nested sections."""
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
"""Every profile, smallest first."""

PAID_SMALL = "paid-small"
"""Profile of a cheap whole pipeline, alone or with any size of model: paid-small+lora-8b."""
PROFILE_NAMES = (AUTO, *PROFILES, PAID_SMALL, *(f"{PAID_SMALL}+{name}" for name in PROFILES))
"""Allowed values of `profile`."""


def values_of(profile: str) -> list[dict[str, Any]]:
    """Return the settings of a profile's name, in rising precedence."""
    return [
        _sections(_FILE["paid_small"]) if name == PAID_SMALL else PROFILES[name].values for name in profile.split("+")
    ]
