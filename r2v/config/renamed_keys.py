"""Renamed and removed configuration keys, which files of an earlier R2V have: an old spelling is still read, with a
warning that names the new one, and a removed key with the only value that it has now."""

from __future__ import annotations

import logging
from typing import Any

from r2v.config.models import FORMER_MODELS
from r2v.config.yaml_text import plain
from r2v.constraints import shown
from r2v.errors import UsageError

RENAMED_KEYS = {
    "teacher.hour_usd": "teacher.waiting_usd_per_hour",
}
"""Old key -> the key that replaced it."""
REMOVED_KEYS: dict[str, dict[str, Any]] = {"preference": {"method": "dpo", "rehearsal": 0.0}}
"""Section -> removed key -> its value in every configuration since, which is still part of fingerprints."""

_log = logging.getLogger("r2v")


def current_assignment(override: str) -> str:
    """A `key=value` override under the key's current name."""
    key, equals, value = override.partition("=")
    if key not in RENAMED_KEYS:
        return override
    _warn(key, "--overrides")
    return f"{RENAMED_KEYS[key]}{equals}{value}"


def is_removed(key: str) -> bool:
    """Whether a dotted key is one that was removed."""
    section, _, name = key.rpartition(".")
    return name in REMOVED_KEYS.get(section, ())


def rename_keys(tree: dict[str, Any], source: str) -> None:
    """Move the values of renamed keys in a tree that was read to their current names, in the same section. A value that
    is also given under the current name wins. Removed keys are left out. Raises UsageError for another value of one."""
    for name, removed in REMOVED_KEYS.items():
        given: Any = tree.get(name)
        for key in removed.keys() & given.keys() if isinstance(given, dict) else ():
            value = plain(given.pop(key))
            if value != removed[key]:
                raise UsageError(
                    f"{source}: {name}.{key}: got {shown(value)}, but the key was removed, and {removed[key]} is all "
                    "that is left of it; leave it out"
                )
    for old, new in RENAMED_KEYS.items():
        *sections, name = old.split(".")
        section: Any = tree
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict) or name not in section:
            continue
        _warn(old, source)
        section.setdefault(new.rpartition(".")[2], section.pop(name))


def warn_of_former_models(tree: Any) -> None:
    """Warn where a configuration (an OmegaConf tree) names a bundled model by a former name."""
    name = tree.policy.model_name
    if name in FORMER_MODELS:
        _log.warning("policy.model_name=%s is now called %s; the old name will be removed", name, FORMER_MODELS[name])


def _warn(old: str, source: str) -> None:
    _log.warning("%s: %s is now called %s; the old name will be removed", source, old, RENAMED_KEYS[old])
