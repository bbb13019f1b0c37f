"""Renamed and removed configuration keys, which files of an earlier R2V have: an old spelling is still read, with a
warning that names the new one, and a removed key with the only value that it has now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from r2v.config.models import FORMER_MODELS
from r2v.config.tasks import PerturbationsConfig
from r2v.config.yaml_text import plain
from r2v.constraints import shown
from r2v.errors import UsageError

_CATEGORIES = PerturbationsConfig.categories()
RENAMED_KEYS = {
    "teacher.hour_usd": "teacher.waiting_usd_per_hour",
    "cost.cache.min_tokens": "cost.cache_min_tokens",
    **{f"perturbations.{name}.mode": f"perturbations.modes.{name}" for name in _CATEGORIES},
}
"""Old key -> the key that replaced it."""


@dataclass(frozen=True, kw_only=True)
class RemovedKey:
    """A key that was removed."""

    value: Any
    """Its value in every configuration since; a value that is None or this one is still read."""
    remedy: str = "leave it out"
    """End of the line that refuses another value."""
    hashed: bool = False
    """True: `value` is still part of fingerprints, so that artifacts from before the removal hold."""


_FITTED = "the router is fitted to convergence on all rows; set router.l2, router.model or router.num_tasks"
_OF_A_PHASE = ("num_epochs", "lr", "batch_size", "gradient_accumulation_steps", "weight_decay", "max_examples")
_OF_ALL_PHASES = ("warmup_ratio", "grad_clip", "save_steps", "optimizer")
REMOVED_KEYS: dict[str, RemovedKey] = {
    "preference.method": RemovedKey(value="dpo", hashed=True),
    "preference.rehearsal": RemovedKey(value=0.0, hashed=True),
    "preference.max_similarity": RemovedKey(value=0.95, hashed=True),
    "evaluation.cvar_alpha": RemovedKey(value=0.2, hashed=True),
    "hierarchical.importance_cap": RemovedKey(value=2.0, hashed=True),
    "teacher.reuse": RemovedKey(value=False, hashed=True),
    "teacher.queued_tokens": RemovedKey(value=None),
    "cost.cache.read": RemovedKey(value=0.1, remedy="set teacher.model.cached_price"),
    "cost.cache.write": RemovedKey(value=1.25, remedy="set teacher.model.cache_write_price"),
    "cost.cache.lifetime": RemovedKey(value=300.0),
    "teacher.usd_per_gpu_hour": RemovedKey(value=0.0),
    "router.model_sha256": RemovedKey(value=None),
    "logging.wandb": RemovedKey(value="auto", remedy="set the variable WANDB_MODE"),
    "logging.project": RemovedKey(value="r2v-agent", remedy="set the variable WANDB_PROJECT"),
    "serve.max_body_mb": RemovedKey(value=33),
    "serve.connect_seconds": RemovedKey(value=10.0),
    "serve.first_byte_seconds": RemovedKey(value=600.0),
    **{
        f"cost.{model}.{name}": RemovedKey(value=seconds)
        for model, call, token in (("slm", 0.02, 0.001), ("llm", 0.6, 0.02))
        for name, seconds in (("seconds_per_call", call), ("seconds_per_token", token))
    },
    **{f"training.router.{name}": RemovedKey(value=None, remedy=_FITTED) for name in (*_OF_A_PHASE, *_OF_ALL_PHASES)},
    **{
        f"training.{phase}.{name}": RemovedKey(value=None, remedy=f"set training.{name}")
        for phase in ("bc", "preference", "verifier")
        for name in _OF_ALL_PHASES
    },
    **{
        f"perturbations.{name}.enabled": RemovedKey(value=True, remedy=f"set perturbations.{name}.prob=0")
        for name in _CATEGORIES
    },
}
"""Dotted key -> what is left of it."""

_log = logging.getLogger("r2v")


def hashed_values(section: str) -> dict[str, Any]:
    """Return the removed keys of a section that fingerprints still hold, with their values."""
    named = ((key.rpartition("."), removed) for key, removed in REMOVED_KEYS.items() if removed.hashed)
    return {name: removed.value for (stem, _, name), removed in named if stem == section}


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


def rename_keys(tree: dict[str, Any], source: str) -> None:
    """Move the values of renamed keys in a tree that was read to their current names. A value that is also given under
    the current name wins. Removed keys are left out. Raise UsageError for another value of one."""
    for category in _extra_categories(tree):  # which are named by a user, so that no key below stands for them
        if plain(category.pop("enabled", None)) is False:
            raise UsageError(f"{source}: perturbations.extra: got enabled=false, but the key was removed; set prob=0")
        category.pop("source_sha256", None)
    for key, value in _taken(tree, REMOVED_KEYS):
        removed = REMOVED_KEYS[key]
        if value is not None and value != removed.value:
            raise UsageError(f"{source}: {key}: got {shown(value)}, but the key was removed; {removed.remedy}")
    for old, value in _taken(tree, RENAMED_KEYS):
        if value is None:
            continue
        _warn(old, source)
        *sections, name = RENAMED_KEYS[old].split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section.setdefault(name, value)


def _extra_categories(tree: dict[str, Any]) -> list[dict[str, Any]]:
    perturbations = tree.get("perturbations")
    extra = perturbations.get("extra") if isinstance(perturbations, dict) else None
    return [one for one in extra.values() if isinstance(one, dict)] if isinstance(extra, dict) else []


def _taken(tree: dict[str, Any], keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Take these dotted keys out of a tree, and the sections that they leave empty. Yield each with its value."""
    for key in keys:
        *sections, name = key.split(".")
        path: list[Any] = [tree]
        for part in sections:
            path.append(path[-1].get(part) if isinstance(path[-1], dict) else None)
        if not isinstance(path[-1], dict) or name not in path[-1]:
            continue
        written = path[-1].pop(name)
        if len(sections) > 1 and not path[-1]:
            del path[-2][sections[-1]]
        yield key, plain(written)


def warn_of_former_models(tree: Any) -> None:
    """Warn where a configuration (an OmegaConf tree) names a bundled model by a former name."""
    name = tree.policy.model_name
    if name in FORMER_MODELS:
        _log.warning("policy.model_name=%s is now called %s; the old name will be removed", name, FORMER_MODELS[name])


def _warn(old: str, source: str) -> None:
    _log.warning("%s: %s is now called %s; the old name will be removed", source, old, RENAMED_KEYS[old])
