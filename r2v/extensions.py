"""Extension points: a user's functions and classes, named in the configuration by `package.module:name`.

    checker = load_function("hierarchical.problems.checker", "mypackage.checks:units", BUILTIN, ("problem", "answer"))
    benchmark = load_class("env.benchmark", "mypackage.bench:Bench", (), Benchmark)

The module is in an installed package, on `PYTHONPATH`, or in the folder where the command was started, which is the
checkout in a Slurm job; nothing is registered. Importing a module runs it, so a configuration is code: the module and
its file are logged before the import. An extension must fit its extension point: a class needs the methods of the
protocol, a function the expected parameters. Modules of Python are never extensions, so `os:system` is refused before
any import.

Commands that only read (docs/trust.md lists them) run within `importing_nothing`, where no extension is imported.
`source_sha256` is the version of an extension in fingerprints, so an edited one makes a new artifact. It reads the file
without an import, so that a configuration can be inspected without running it.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from r2v.errors import UsageError, nearest

logger = logging.getLogger("r2v")

_importing = True
"""False within `importing_nothing`."""

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*( [0-9a-f]{64})?", re.ASCII)
"""A path; in hashed settings the hash of its file follows."""


class NotImported(UsageError):
    """An extension was requested within `importing_nothing`."""


@contextmanager
def importing_nothing() -> Iterator[None]:
    """Refuse to import extensions within the block, so that a command that only reads runs no code of an untrusted
    configuration."""
    global _importing
    before, _importing = _importing, False
    try:
        yield
    finally:
        _importing = before


def may_import() -> bool:
    """True if extensions may be imported here."""
    return _importing


def search_working_directory() -> None:
    """Append the current directory to the module path, which an installed `r2v` script lacks. It comes last, so that no
    file in it can shadow an installed module."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()


def _remedy() -> str:
    return f"searched {Path.cwd()}, PYTHONPATH and installed packages"


def is_dotted(spec: str) -> bool:
    """True if a configured name is a path `package.module:name`."""
    return _DOTTED.fullmatch(spec) is not None


def require_name(key: str, spec: str, builtin: Collection[str]) -> None:
    """Raise UsageError, with the nearest built-in name, unless `spec` is built in or a path. Imports nothing."""
    if spec not in builtin and not is_dotted(spec):
        raise UsageError(f"{key}={spec}: unknown; {nearest(spec, builtin)} (or a path package.module:name of your own)")


def load_class(key: str, spec: str, builtin: Collection[str], protocol: type, *, by_user: bool = False) -> type[Any]:
    """Return the class at `package.module:Class`, which has every method of `protocol`.

    Raises UsageError as `load_attribute` does, for another object than a class, and for missing members.
    """
    loaded = load_attribute(key, spec, builtin, by_user=by_user)
    if not isinstance(loaded, type):
        raise UsageError(f"{key}={spec}: is a {type(loaded).__name__}, not a class; name a {protocol.__name__}")
    members = [*protocol.__annotations__, *_methods(protocol)]
    if any(not callable(getattr(loaded, name, None)) for name in _methods(protocol)):
        missing = ", ".join(name for name in members if not hasattr(loaded, name))
        raise UsageError(f"{key}={spec}: is no {protocol.__name__}: it lacks {missing}")
    return loaded


def _methods(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


def load_function(key: str, spec: str, builtin: Collection[str], parameters: Sequence[str]) -> Callable[..., Any]:
    """Return the function at `package.module:name` with parameters of these names. `key`: its configuration key.
    `builtin`: the built-in names. Raises UsageError as `load_attribute` and `require_function` do."""
    return require_function(key, spec, load_attribute(key, spec, builtin), parameters)


def require_function(key: str, spec: str, loaded: Any, parameters: Sequence[str]) -> Callable[..., Any]:
    """Return `loaded` if it is a Python function or class method of exactly these parameters, else raise UsageError."""
    expected = f"a function of ({', '.join(parameters)})"
    if not (inspect.isfunction(loaded) or inspect.ismethod(loaded)):
        raise UsageError(f"{key}={spec}: is a {type(loaded).__name__}; name {expected}")
    if (own_parameters := tuple(inspect.signature(loaded).parameters)) != tuple(parameters):
        raise UsageError(f"{key}={spec}: takes ({', '.join(own_parameters)}); name {expected}")
    return loaded


def load_attribute(key: str, spec: str, builtin: Collection[str], *, by_user: bool = False) -> Any:
    """Return the object at `package.module:name`, and log its import first. `by_user`: named by the user's environment
    variable instead of a file.

    Raises NotImported within `importing_nothing`, unless `by_user`; UsageError if `spec` is neither a path nor built in
    (with the nearest built-in name), or the module is Python's, cannot be imported, or lacks the name (with its
    nearest).
    """
    require_name(key, spec, builtin)
    module_name, _, name = spec.partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise UsageError(f"{key}={spec}: {module_name} is a module of Python itself; name one of your own")
    if not (_importing or by_user or _is_own(spec)):
        raise NotImported(
            f"{key}={spec}: not imported, for this command only reads; commands that run stages import it, and "
            "`r2v check-env` a benchmark"
        )
    if module_name not in sys.modules:
        _announce(key, spec)
    search_working_directory()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # an extension may raise anything during its import
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{key}={spec}: cannot import {module_name} ({reason}); {_remedy()}") from error
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UsageError(f"{key}={spec}: {module_name} has no {name}; {nearest(name, public)}")
    return getattr(module, name)


def _is_own(spec: str) -> bool:
    """True if the path is in R2V itself."""
    return spec.startswith("r2v.")


@cache
def _announce(key: str, spec: str) -> None:
    """Log an import in advance, once per process; none of R2V's own modules. Raises UsageError for a missing module."""
    if _is_own(spec):
        return
    if (file := source_file(spec)) is None:
        raise UsageError(f"{key}={spec}: cannot import {spec.partition(':')[0]} (no such module); {_remedy()}")
    logger.info("importing extension: key=%s path=%s file=%s", key, spec, file)


def source_sha256(key: str, spec: str) -> str:
    """Return the hex SHA-256 of the module's file of `spec`; "" without a file, as for a namespace package.

    Imports nothing, not even the module's packages. Raises UsageError for a missing module.
    """
    file = source_file(spec)
    if file is None:
        raise UsageError(f"{key}={spec}: there is no module {spec.partition(':')[0]}; {_remedy()}")
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def source_file(spec: str) -> Path | None:
    """Return the file of the module of `spec`, or its folder for a namespace package; None for a missing module.
    Imports nothing."""
    folders: list[str] | None = None
    module_spec: ModuleSpec | None = None
    importlib.invalidate_caches()
    words = spec.partition(":")[0].split(".")
    for depth in range(len(words)):
        module_spec = _find(".".join(words[: depth + 1]), folders)
        if module_spec is None:
            return None
        folders = _folders(module_spec)
    assert module_spec is not None
    if module_spec.origin is not None and Path(module_spec.origin).is_file():
        return Path(module_spec.origin)
    return Path(folders[0]) if folders else Path(module_spec.origin or module_spec.name)


def _find(name: str, folders: list[str] | None) -> ModuleSpec | None:
    """Return the module's specification by Python's finders, with the current directory last; None if missing."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            here = [] if "" in sys.path else [str(Path.cwd())]
            # by the last word, because by its full name a namespace package would import its parent
            spec = PathFinder.find_spec(name.rpartition(".")[2], [*sys.path, *here] if folders is None else folders)
        else:
            spec = finder.find_spec(name, folders)
        if spec is not None:
            return spec
    return None


def _folders(spec: ModuleSpec) -> list[str]:
    """Return the folders of a package's submodules. The plain list of a namespace package is read, because its
    iteration would import the parent."""
    locations = spec.submodule_search_locations
    return [] if locations is None else list(getattr(locations, "_path", locations))
