"""Loading: a configuration from the defaults, a profile, a YAML file and `--overrides`, each winning over those before.

    config = load("configs/mrp.yaml", ["training.lr=1e-3", "policy.lora_r=32"])

OmegaConf merges the layers. An unknown key or a forbidden value is refused in one line that names the layer, the key
and the nearest key or the allowed values (`r2v.config.sources`, `r2v.constraints`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from r2v.config.config import Config, without_added
from r2v.config.profiles import AUTO, PROFILE_NAMES, values_of
from r2v.config.sources import (
    YAMLFile,
    file_tree,
    key_hint,
    keys_of,
    override_tree,
    require_shapes,
    understood,
    written_tree,
)
from r2v.config.yaml_text import write
from r2v.constraints import check_fields, declared, hints_of, shown, unwrap
from r2v.errors import UsageError

S = TypeVar("S")
Source = str | Path | dict[str, Any] | None
"""The YAML file of a configuration, or a tree as `r2v.config.yaml_text` reads one; None: no file."""
WITHOUT_FILE = "the configuration"
"""The source of a tree, in errors."""
Layer = tuple[str, dict[str, Any]]
"""The name of a source of settings, and its tree."""


def load(path: Source = None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, a profile, a YAML file and `key=value` overrides into a checked Config.

    Raises UsageError (exit 2) in one line for a missing file, an unknown key (with the nearest one), a value of the
    wrong type or out of its range, and for input that `r2v.config.sources` refuses.
    """
    if isinstance(overrides, str | Mapping):
        raise UsageError(f"overrides: must be a list, such as ['training.lr=1e-3'], got {shown(overrides)}")
    return _loaded(list(_layers(path, overrides)))


def load_recorded(path: Path) -> Config:
    """Return the configuration in an artifact's config.yaml, read as by `load`. Equal files share one object, not to be
    changed: a plan reads a file for each earlier run, nearly all of them equal."""
    return _recorded(YAMLFile.read(path))


@functools.lru_cache(maxsize=64)
def _recorded(file: YAMLFile) -> Config:
    return _loaded([_layer(file)])


def _loaded(layers: Sequence[Layer]) -> Config:
    from omegaconf import OmegaConf

    source, merged = "the defaults", copy.deepcopy(_defaults())
    profile = _profile(layers)
    if profile is not None:
        for values in values_of(profile):
            merged = _merged(f"profile={profile}", merged, values)
    for source, tree in layers:
        merged = _merged(source, merged, tree)
    config = understood(source, lambda: OmegaConf.to_object(merged), _own_keys())
    assert isinstance(config, Config)
    if config.profile not in (profile, AUTO):
        raise UsageError(f"profile: must be a name of its own, got a reference to {shown(config.profile)}")
    return config


def _profile(layers: Sequence[Layer]) -> str | None:
    """Return the profile that a user names; None for `auto` (the first name) and for unknown names."""
    named = [tree["profile"] for _, tree in layers if "profile" in tree]
    return named[-1] if named and isinstance(named[-1], str) and named[-1] in PROFILE_NAMES[1:] else None


def assigned_keys(path: Source = None, overrides: Sequence[str] = ()) -> set[str]:
    """Return the dotted keys set by a file and overrides. Raises UsageError as `load` does."""
    return {key for source, tree in _layers(path, overrides) for key in keys_of(source, tree)}


def _layers(path: Source, overrides: Sequence[str]) -> Iterator[Layer]:
    """Yield the settings as a user wrote them, in rising precedence."""
    if isinstance(path, dict):
        yield WITHOUT_FILE, written_tree(WITHOUT_FILE, path, Config)
    elif path is not None:
        yield _layer(YAMLFile.read(Path(path)))
    for override in overrides:
        source, (key, equals, _) = f"--overrides {shown(override)}", override.partition("=")
        if not equals or not key:
            raise UsageError(f"{source}: expected key=value, e.g. training.lr=1e-3")
        if key not in _own_keys() and not key.startswith(_mappings()):
            raise UsageError(f"{source}: unknown key {shown(key)}; {key_hint(key, _own_keys())}")
        yield source, override_tree(source, override, Config)


def _layer(file: YAMLFile) -> Layer:
    return str(file.path), file_tree(file, Config)


@functools.cache
def _defaults() -> Any:
    """Return the tree of the defaults; copy it before merging into it."""
    from omegaconf import OmegaConf

    return OmegaConf.structured(Config)


def _merged(source: str, tree: Any, changes: dict[str, Any]) -> Any:
    """Return the tree with `changes` merged in. Both arguments are consumed: a copy for each override would be slow."""
    from omegaconf import OmegaConf

    def merge() -> Any:
        require_shapes(source, tree, changes)
        return OmegaConf.unsafe_merge(tree, changes)

    return understood(source, merge, _own_keys())


def section(cls: type[S], values: dict[str, Any]) -> S:
    """Return one section from the plain values of `identity`. Raises UsageError as `load` does."""
    from omegaconf import OmegaConf

    name = next(item.name for item in dataclasses.fields(Config) if hints_of(Config)[item.name] is cls)
    tree = {name: copy.deepcopy(values)}
    without_added(tree, cls.__name__)
    merged = _merged(cls.__name__, OmegaConf.structured(cls), tree[name])
    result = understood(cls.__name__, lambda: OmegaConf.to_object(merged), _own_keys())
    assert isinstance(result, cls)
    check_fields(name, result)
    return result


def keys(cls: type = Config, stem: str = "") -> Iterator[str]:
    """Yield every dotted key of the configuration, sections included."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        yield stem + item.name
        if dataclasses.is_dataclass(hints[item.name]):
            yield from keys(hints[item.name], f"{stem}{item.name}.")


@functools.cache
def _own_keys() -> tuple[str, ...]:
    """Return the keys of `Config`."""
    return tuple(keys())


@functools.cache
def _mappings() -> tuple[str, ...]:
    """Return the prefixes of keys inside mappings, whose names are the user's own."""
    free = [key for key, base, _ in declared(Config) if typing.get_origin(base) is dict]
    return tuple(f"{key}{end}" for key in free for end in ".[")


def to_yaml(config: Config) -> str:
    """Return the configuration as YAML that `load` accepts again."""
    return write(_plain(Config, config))


def _plain(hint: Any, value: Any) -> Any:
    """Return a field's value as plain values. An integer in a float field becomes a float: 1.0."""
    base, _ = unwrap(hint)
    inner = typing.get_args(base) or (Any, Any)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(hint, getattr(value, name)) for name, hint in hints_of(type(value)).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner[0], item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner[1], item) for key, item in value.items()}
    return float(value) if base is float and value is not None else value
