"""Renamed and removed configuration keys, which files of an earlier R2V have: an old spelling is still read, with a
warning that names the new one, and a removed key with the only value that it has now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from r2v.config.models import FORMER_MODELS
from r2v.config.tasks import PerturbationsConfig
from r2v.config.yaml_text import plain
from r2v.constraints import shown
from r2v.errors import UsageError

RENAMED_KEYS = {
    "teacher.hour_usd": "teacher.waiting_usd_per_hour",
    "cost.cache.min_tokens": "cost.cache_min_tokens",
}
"""Old key -> the key that replaced it."""
REMOVED_KEYS: dict[str, Any] = {
    "preference.method": "dpo",
    "preference.rehearsal": 0.0,
    "preference.max_similarity": 0.95,
    "evaluation.cvar_alpha": 0.2,
    "hierarchical.importance_cap": 2.0,
    "teacher.reuse": False,
    "cost.slm.seconds_per_call": 0.02,
    "cost.slm.seconds_per_token": 0.001,
    "cost.llm.seconds_per_call": 0.6,
    "cost.llm.seconds_per_token": 0.02,
    "cost.cache.read": 0.1,
    "cost.cache.write": 1.25,
    "cost.cache.lifetime": 300.0,
    **{f"perturbations.{name}.enabled": True for name in PerturbationsConfig.categories()},
}
"""Removed key -> its value in every configuration since, which is still part of fingerprints."""

_log = logging.getLogger("r2v")


def removed_values(section: str) -> dict[str, Any]:
    """Return the removed keys of a section, by name, with the values that fingerprints still hold."""
    named = ((key.rpartition("."), value) for key, value in REMOVED_KEYS.items())
    return {name: value for (stem, _, name), value in named if stem == section}


def current_assignment(override: str) -> str:
    """Return a `key=value` override under the key's current name."""
    key, equals, value = override.partition("=")
    if key not in RENAMED_KEYS:
        return override
    _warn(key, "--overrides")
    return f"{RENAMED_KEYS[key]}{equals}{value}"


def is_removed(key: str) -> bool:
    """True if a dotted key was removed."""
    return key in REMOVED_KEYS


def rename_keys(tree: dict[str, Any], source: str, *, warns: bool = True) -> None:
    """Move the values of renamed keys in a tree that was read to their current names. A value that is also given under
    the current name wins. Removed keys are left out. Raise UsageError for another value of one."""
    for key, value in _taken(tree, REMOVED_KEYS):
        if value != REMOVED_KEYS[key]:
            raise UsageError(
                f"{source}: {key}: got {shown(value)}, but the key was removed, and {REMOVED_KEYS[key]} is all that is "
                "left of it; leave it out"
            )
    for old, value in _taken(tree, RENAMED_KEYS):
        if warns:
            _warn(old, source)
        *sections, name = RENAMED_KEYS[old].split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section.setdefault(name, value)


def _taken(tree: dict[str, Any], keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Take these dotted keys out of a tree, and what they leave empty below a section. Yield each with its value."""
    for key in keys:
        *sections, name = key.split(".")
        above: Any = tree
        section: Any = tree
        for part in sections:
            above, section = section, section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            yield key, plain(section.pop(name))
            if not section and len(sections) > 1:
                del above[sections[-1]]


def warn_of_former_models(tree: Any) -> None:
    """Warn where a configuration (an OmegaConf tree) names a bundled model by a former name."""
    name = tree.policy.model_name
    if name in FORMER_MODELS:
        _log.warning("policy.model_name=%s is now called %s; the old name will be removed", name, FORMER_MODELS[name])


def _warn(old: str, source: str) -> None:
    _log.warning("%s: %s is now called %s; the old name will be removed", source, old, RENAMED_KEYS[old])
