"""Configuration sources: a YAML file or a `key=value` override, read as a tree of plain values and references.

User input is checked here first: YAML that `r2v.config.yaml_text` refuses, `???` in place of a value, and every
interpolation but two are errors:

    ${data.num_episodes}      the value of another key
    ${oc.env:SCRATCH}         an environment variable that names a place, a user or a machine

The resolved configuration is stored with every artifact and in manifests, so no variable that may hold a secret is
read into it: `teacher.api_key_env` names the key's variable, which is read only where it is used.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from r2v.config.yaml_text import DEEPEST, LARGEST_FILE, as_type, file_text, plain, read, read_file
from r2v.constraints import shown
from r2v.errors import InputError, UsageError, nearest
from r2v.redaction import SECRET_NAME

PLACES = re.compile(
    r"HOME|USER|LOGNAME|HOSTNAME|PWD|SHELL|LANG|TMPDIR|TMP|TEMP|SCRATCH|WORK|PROJECT|DATA|STORE|GROUP"
    r"|SLURM_\w+|CUDA_VISIBLE_DEVICES|\w+_(DIR|DIRECTORY|FOLDER|HOME|ROOT|PATH|SCRATCH|WORK|PROJECT|DATA|CACHE)"
)
"""Environment variables that a configuration may read: names of places, users and machines."""

_REFERENCE = re.compile(r"\$\{([^{}$]*)(.?)")
_KEY = re.compile(r"\s*[\w.\[\]]+\s*")
_ENVIRONMENT = re.compile(r"\s*oc\.env\s*:\s*([A-Za-z_]\w*)\s*(?:,[^{}$]*)?")
T = TypeVar("T")


@dataclass(frozen=True)
class YAMLFile:
    """A file's path and text. Files with the same text are equal."""

    path: Path = field(compare=False)
    """Path for error messages, not compared."""
    text: str
    """The content."""

    @classmethod
    def read(cls, path: Path) -> YAMLFile:
        """Return the file. Raise UsageError naming it if it cannot be read."""
        try:
            return cls(path, file_text(path))
        except InputError as error:
            raise UsageError(f"--config {error}") from None


def file_tree(file: YAMLFile, section: type) -> dict[str, Any]:
    """Return the tree of a file with the types that `section` declares. Raise UsageError naming the file."""
    return written_tree(str(file.path), read(file.text, file.path).mapping(), section)


def written_tree(source: str, written: dict[str, Any], section: type) -> dict[str, Any]:
    """Return a parsed tree with the types that `section` declares. Raise UsageError naming the source."""
    tree: dict[str, Any] = as_type(written, section)
    _require_plain(source, tree)
    return tree


def override_tree(source: str, override: str, section: type) -> dict[str, Any]:
    """Return the tree of one `key=value` with the types that `section` declares. Raise UsageError naming the source."""
    if len(override) > LARGEST_FILE:
        raise UsageError(f"{source[:80]}...: has {len(override)} characters, at most {LARGEST_FILE} are read")
    key, _, text = override.partition("=")
    written = read(text, source).value
    for name in reversed(_names(key)):
        written = {name: written}
    return written_tree(source, written, section)


def _names(key: str) -> list[str]:
    """Return the parts of a dotted key; a part with dots is in brackets: `perturbations.extra[my.fog:FOG].prob`."""
    if "[" not in key:
        return key.split(".")
    return [bracketed or plain for bracketed, plain in re.findall(r"\[([^\]]*)\]|([^.\[\]]+)", key)]


def understood(source: str, read: Callable[[], T], keys: Collection[str]) -> T:
    """Return the result of `read`. Raise one UsageError naming the source for every error of OmegaConf, documented or
    not, with the nearest of `keys` for an unknown one."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        return read()
    except OmegaConfBaseException as error:
        key, message = str(getattr(error, "full_key", None) or ""), str(error).splitlines()[0]
        if re.match(r"Key '(\w+)' not in", message):
            message = f"unknown key {key}; {key_hint(key, keys)}"
        elif key:
            message = f"{key}: {message}"
        raise UsageError(f"{source}: {message}") from error
    except RecursionError as error:
        raise UsageError(f"{source}: nested more deeply than {DEEPEST} levels") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, AssertionError) as error:
        raise UsageError(f"{source}: {shown(' '.join(str(error).split()) or type(error).__name__)}") from error


def require_shapes(source: str, tree: Any, changes: dict[str, Any], stem: str = "") -> None:
    """Raise UsageError naming the key if a list, a mapping or a single value replaces another of these kinds: OmegaConf
    accepts some of them, and its messages on the others are unclear."""
    from omegaconf import OmegaConf

    for key, given in changes.items():
        if key not in tree or OmegaConf.is_interpolation(tree, key):
            continue
        node = tree._get_node(key)
        single = isinstance(given, str | int | float) and "${" not in str(given)
        if OmegaConf.is_dict(node) and (single or isinstance(given, list)):
            kind = "the list " if isinstance(given, list) else ""
            raise UsageError(f"{source}: {stem}{key}: must be keys with values, got {kind}{shown(given)}")
        if OmegaConf.is_list(node) and (single or isinstance(given, dict)):
            remedy = f", such as {stem}{key}=[{shown(given)}]" if single else ""
            raise UsageError(f"{source}: {stem}{key}: must be a list{remedy}, got {shown(given)}")
        if OmegaConf.is_dict(node) and isinstance(given, dict):
            require_shapes(source, node, given, f"{stem}{key}.")


def _require_plain(source: str, tree: dict[str, Any]) -> None:
    """Raise UsageError for `???`, for a tree too deep, and for an interpolation that is not allowed."""
    for key, value in _leaves(source, tree):
        if isinstance(value, str) and value.strip() == "???":
            raise UsageError(f"{source}: {key}: ??? stands for a value that is missing; give one, or leave the key out")
        for match in _REFERENCE.finditer(value) if isinstance(value, str) else ():
            _require_allowed(source, key, match)


def keys_of(source: str, tree: dict[str, Any]) -> set[str]:
    """Return the dotted keys that a tree sets."""
    return {key for key, _ in _leaves(source, tree)}


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
    if end == "}" and variable and PLACES.fullmatch(variable[1]) and not SECRET_NAME.search(variable[1]):
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


@functools.cache
def synonyms() -> dict[str, list[str]]:
    """Return the last part of a key in other tools -> the last parts of R2V's keys, most likely first."""
    return dict(plain(read_file(Path(__file__).with_name("synonyms.yaml")).value))


_MOST = 3
"""Maximum number of keys in a hint."""


def key_hint(key: str, keys: Collection[str]) -> str:
    """Return "did you mean ...?" for a dotted key that is not in `keys`, or a few of them if none is near.

    >>> key_hint("training.learning_rate", ["training", "training.lr", "training.warmup_ratio"])
    'did you mean training.lr?'
    """
    stem, _, name = key.rpartition(".")
    stem = _section(stem, keys)
    names = (name, *synonyms().get(name.lower(), ()))
    beside = {other.removeprefix(stem): other for other in keys if other.startswith(stem)}
    if same_section := [beside[name] for name in names if name in beside]:
        return f"did you mean {same_section[0]}?"
    if not difflib.get_close_matches(name, [other for other in beside if "." not in other], n=1, cutoff=0.8):
        matching = [other for name in names for other in keys if other.rpartition(".")[2] == name]
        least = min((other.count(".") for other in matching), default=0)
        if shallowest := [other for other in matching if other.count(".") == least]:
            return f"did you mean {' or '.join(shallowest[:_MOST])}?"
    return nearest(key, keys)


def _section(stem: str, keys: Collection[str]) -> str:
    """Return the section that a key names, spelling corrected, with a trailing dot; "" for the top level."""
    if not stem:
        return ""
    sections = sorted({other.rpartition(".")[0] for other in keys} - {""})
    return (*difflib.get_close_matches(stem, sections, n=1, cutoff=0.7), stem)[0] + "."
