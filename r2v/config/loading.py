"""Loading: a configuration from the defaults, a profile, a YAML file and `--overrides`, each winning over those before.

    config = load("configs/mrp.yaml", ["training.lr=1e-3", "policy.lora_r=32"])

OmegaConf merges the layers. A key that does not exist or a value that is not allowed is refused in one line that names
the layer, the key and the nearest key or the allowed values (`r2v.config.sources`, `r2v.constraints`).
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
from r2v.constraints import declared, hints_of, shown, unwrap
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
    wrong type or out of its range, and for what `r2v.config.sources` refuses.
    """
    if isinstance(overrides, str | Mapping):
        raise UsageError(f"overrides: must be a list, such as ['training.lr=1e-3'], got {shown(overrides)}")
    return _loaded(list(_layers(path, overrides)))


def load_recorded(path: Path) -> Config:
    """Return the configuration in a file that R2V wrote beside an artifact, read as by `load`. Files that say the same
    share one object, which nobody may alter: a plan reads a file for each earlier run, nearly all of them the same."""
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
    """Return the profile that a user names; None for `auto`, the first name, and for a name that there is not."""
    named = [tree["profile"] for _, tree in layers if "profile" in tree]
    return named[-1] if named and isinstance(named[-1], str) and named[-1] in PROFILE_NAMES[1:] else None


def assigned_keys(path: Source = None, overrides: Sequence[str] = ()) -> set[str]:
    """The dotted keys that a file and overrides give a value. Raises UsageError as `load` does."""
    return {key for source, tree in _layers(path, overrides) for key in keys_of(source, tree)}


def _layers(path: Source, overrides: Sequence[str]) -> Iterator[Layer]:
    """Settings as a user wrote them, the weakest first."""
    if isinstance(path, dict):
        yield WITHOUT_FILE, written_tree(WITHOUT_FILE, path, Config)
    elif path is not None:
        yield _layer(YAMLFile.read(Path(path)))
    for override in overrides:
        source = f"--overrides {shown(override)}"
        _require_assignment(override)
        yield source, override_tree(source, override, Config)


def _layer(file: YAMLFile) -> Layer:
    return str(file.path), file_tree(file, Config)


@functools.cache
def _defaults() -> Any:
    """The tree of the defaults, to be copied before anything is merged into it."""
    from omegaconf import OmegaConf

    return OmegaConf.structured(Config)


def _merged(source: str, tree: Any, changes: dict[str, Any]) -> Any:
    """The tree with other values. Neither is to be used again: copying the whole of it for each override is dear."""
    from omegaconf import OmegaConf

    def merge() -> Any:
        require_shapes(source, tree, changes)
        return OmegaConf.unsafe_merge(tree, changes)

    return understood(source, merge, _own_keys())


def section(cls: type[S], values: dict[str, Any]) -> S:
    """One section from plain values, as `identity` gave them. Raises UsageError as `load` does."""
    from omegaconf import OmegaConf

    name = next(item.name for item in dataclasses.fields(Config) if hints_of(Config)[item.name] is cls)
    tree = {name: copy.deepcopy(values)}
    without_added(tree, cls.__name__)
    merged = _merged(cls.__name__, OmegaConf.structured(cls), tree[name])
    made = understood(cls.__name__, lambda: OmegaConf.to_object(merged), _own_keys())
    assert isinstance(made, cls)
    return made


def _require_assignment(override: str) -> None:
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise UsageError(f"--overrides {shown(override)}: expected key=value, e.g. training.lr=1e-3")
    if key not in _own_keys() and not key.startswith(_mappings()):
        raise UsageError(f"--overrides {shown(override)}: unknown key {shown(key)}; {key_hint(key, _own_keys())}")


def keys(cls: type = Config, stem: str = "") -> Iterator[str]:
    """Every dotted key of the configuration, sections included."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        yield stem + item.name
        if dataclasses.is_dataclass(hints[item.name]):
            yield from keys(hints[item.name], f"{stem}{item.name}.")


@functools.cache
def _own_keys() -> tuple[str, ...]:
    """The keys of `Config`."""
    return tuple(keys())


@functools.cache
def _mappings() -> tuple[str, ...]:
    """Beginnings of the keys of mappings, below which a user names keys of his own."""
    free = [key for key, base, _ in declared(Config) if typing.get_origin(base) is dict]
    return tuple(f"{key}{end}" for key in free for end in ".[")


def to_yaml(config: Config) -> str:
    """The configuration as YAML that `load` accepts again."""
    return write(_plain(Config, config))


def _plain(hint: Any, value: Any) -> Any:
    """A field's value as plain values. A whole number in a field of a real one is written as that: 1.0."""
    base, _ = unwrap(hint)
    inner = typing.get_args(base) or (Any, Any)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(hint, getattr(value, name)) for name, hint in hints_of(type(value)).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner[0], item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner[1], item) for key, item in value.items()}
    return float(value) if base is float and value is not None else value
