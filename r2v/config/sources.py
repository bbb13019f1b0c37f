"""Configuration sources: a YAML file or a `key=value` override, read as a tree of plain values and references.

What a user types is refused here before anything is made of it: `???` in place of a value, files too large or too deep
to have been written by hand, and every interpolation but two:

    ${data.num_episodes}      the value of another key
    ${oc.env:SCRATCH}         an environment variable that names a place, a user or a machine

The resolved configuration is written beside every artifact and into manifests, so no variable that may hold a secret
is ever read into it: keys are named by `teacher.api_key_env` and read where they are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from r2v.config.renamed_keys import rename_keys
from r2v.constraints import shown
from r2v.errors import UsageError

LARGEST_FILE = 1_000_000
"""Bytes of a configuration file; the largest of ours has some 2,000."""
DEEPEST = 20
"""Levels of a configuration; the defaults have three."""

PLACES = re.compile(
    r"HOME|USER|LOGNAME|HOSTNAME|PWD|SHELL|LANG|TMPDIR|TMP|TEMP|SCRATCH|WORK|PROJECT|DATA|STORE|GROUP"
    r"|SLURM_\w+|CUDA_VISIBLE_DEVICES|\w+_(DIR|DIRECTORY|FOLDER|HOME|ROOT|PATH|SCRATCH|WORK|PROJECT|DATA|CACHE)"
)
"""Environment variables that a configuration may read: names of places, users and machines."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|PRIVATE|CERT", re.IGNORECASE)

_REFERENCE = re.compile(r"\$\{([^{}$]*)(.?)")
_KEY = re.compile(r"\s*[\w.\[\]]+\s*")
_ENVIRONMENT = re.compile(r"\s*oc\.env\s*:\s*([A-Za-z_]\w*)\s*(?:,[^{}$]*)?")
T = TypeVar("T")


@dataclass(frozen=True)
class YAMLFile:
    """A file as it was read. Files that say the same are equal."""

    path: Path = field(compare=False)
    """Named in errors, and no part of its identity."""
    text: str
    """Its content."""

    @classmethod
    def read(cls, path: Path) -> YAMLFile:
        """Return the file. Raise UsageError naming it where it cannot be read."""
        return cls(path, _text(path))


def read_yaml(file: YAMLFile) -> Any:
    """The tree of a file, renamed keys under their current names. Raises UsageError naming the file."""
    from omegaconf import DictConfig, OmegaConf

    path, text = file.path, file.text
    understood(str(path), lambda: _require_shallow(str(path), text))
    loaded = understood(str(path), lambda: OmegaConf.create(text))
    if not isinstance(loaded, DictConfig):
        raise UsageError(f"{path}: holds a list, not sections such as `training: {{lr: 1e-3}}`")
    understood(str(path), lambda: _require_plain(str(path), loaded))
    rename_keys(loaded, str(path))
    return loaded


def read_override(source: str, override: str) -> Any:
    """The tree of one `key=value`. Raises UsageError naming the `source`."""
    from omegaconf import OmegaConf

    if len(override) > LARGEST_FILE:
        raise UsageError(f"{source[:80]}...: has {len(override)} characters, at most {LARGEST_FILE} are read")
    understood(source, lambda: _require_shallow(source, override.partition("=")[2]))
    loaded = understood(source, lambda: OmegaConf.from_dotlist([override]))
    understood(source, lambda: _require_plain(source, loaded))
    return loaded


def understood(source: str, read: Callable[[], T]) -> T:
    """What `read` makes of a source. What YAML and OmegaConf raise, documented or not, is one UsageError naming it."""
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return read()
    except OmegaConfBaseException:
        raise  # it names the key, and the caller the nearest one
    except (YAMLError, UnicodeError) as error:
        raise UsageError(f"{source}: not YAML: {shown(' '.join(str(error).split()))}") from error
    except RecursionError as error:
        raise UsageError(f"{source}: nested more deeply than {DEEPEST} levels") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "integer string conversion" in reason:
            reason = "a number of thousands of digits"
        raise UsageError(f"{source}: {shown(reason)}") from error


def require_shapes(source: str, tree: Any, changes: Any, stem: str = "") -> None:
    """Raises UsageError naming the key where a list stands for a mapping or the reverse; OmegaConf would not."""
    from omegaconf import OmegaConf

    for key in changes:
        if key not in tree or OmegaConf.is_interpolation(changes, key) or OmegaConf.is_interpolation(tree, key):
            continue
        known, given = tree._get_node(key), changes._get_node(key)
        if OmegaConf.is_dict(known) and OmegaConf.is_list(given):
            raise UsageError(f"{source}: {stem}{key}: must be keys with values, got the list {shown(given)}")
        if OmegaConf.is_list(known) and OmegaConf.is_dict(given):
            raise UsageError(f"{source}: {stem}{key}: must be a list, got {shown(given)}")
        if OmegaConf.is_dict(known) and OmegaConf.is_dict(given):
            require_shapes(source, known, given, f"{stem}{key}.")


def _text(path: Path) -> str:
    try:
        if not path.exists():
            raise UsageError(f"--config {path}: no such file")
        if not path.is_file():
            raise UsageError(f"--config {path}: not a file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"--config {shown(path)}: {error.strerror or error}") from error
    if len(content) > LARGEST_FILE:
        raise UsageError(f"--config {path}: larger than {LARGEST_FILE} bytes; no configuration is")
    return understood(str(path), content.decode)


def _require_shallow(source: str, text: str) -> None:
    """Raises UsageError for YAML nested too deeply. Read event by event, for the library's C code builds trees by
    recursion and ends the process where they are deep."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise UsageError(f"{source}: nested more deeply than {DEEPEST} levels")


def _require_plain(source: str, tree: Any) -> None:
    """Raises UsageError for `???`, for a tree too deep, and for an interpolation that is not allowed."""
    from omegaconf import OmegaConf

    for key, value in _leaves(source, OmegaConf.to_container(tree, resolve=False)):
        if isinstance(value, str) and value.strip() == "???":
            raise UsageError(f"{source}: {key}: ??? stands for a value that is missing; give one, or leave the key out")
        for match in _REFERENCE.finditer(value) if isinstance(value, str) else ():
            _require_allowed(source, key, match)


def keys_of(source: str, tree: Any) -> set[str]:
    """The dotted keys that a tree gives values."""
    from omegaconf import OmegaConf

    return {key for key, _ in _leaves(source, OmegaConf.to_container(tree, resolve=False))}


def _leaves(source: str, value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > DEEPEST:
        raise UsageError(f"{source}: nested more deeply than {DEEPEST} levels")
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(source, item, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(source, item, key, depth + 1)
    else:
        yield key, value


def _require_allowed(source: str, key: str, match: re.Match[str]) -> None:
    inner, end = match.groups()
    variable = _ENVIRONMENT.fullmatch(inner)
    if end == "}" and variable and PLACES.fullmatch(variable[1]) and not _SECRET.search(variable[1]):
        return
    if end == "}" and _KEY.fullmatch(inner):
        return
    if inner.strip().startswith("oc.env"):
        raise UsageError(
            f"{source}: {key} reads an environment variable that may hold a secret, and the configuration is written "
            "beside every artifact; allowed are those that name a place, such as HOME, SCRATCH or *_DIR. Name the "
            "variable of a key in teacher.api_key_env"
        )
    raise UsageError(
        f"{source}: {key}: only ${{another.key}} and ${{oc.env:NAME}} are interpolated, got {shown(match[0])}"
    )
