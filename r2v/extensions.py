"""Extension points: functions and classes of one's own, named in the configuration by `package.module:name`.

    checker = load_function("hierarchical.problems.checker", "mypackage.checks:units", BUILTIN, ("problem", "answer"))
    benchmark = load_class("env.benchmark", "mypackage.bench:Bench", (), Benchmark)

The module is an installed package's, or lies on `PYTHONPATH` or in the folder where the command was started, which is
the checkout in a Slurm job; nothing is registered. To import a module is to run it, so a configuration is code: the
line that says what is imported, and from which file, comes first. What is named is used only where it is what the
extension point asks for: a class with the methods of its protocol, or a function with the parameters that it is called
with. Python's own modules are never extensions, so `os:system` is refused before anything is imported.

Commands that only read (docs/trust.md lists them) run within `importing_nothing`, where nothing is imported, whoever
asks. `source_sha256` goes into a fingerprint in place of a version number, so an edited extension makes a new artifact.
It reads the file and imports nothing: a configuration can be looked at without running what it names.
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
"""A path, and in settings that go into a fingerprint the content of its file behind it."""


class NotImported(UsageError):
    """Code of somebody's own was asked for within `importing_nothing`."""


@contextmanager
def importing_nothing() -> Iterator[None]:
    """Within the block, import no code that a file names: a command that only reads runs there, so that looking at a
    stranger's configuration runs nothing of his."""
    global _importing
    before, _importing = _importing, False
    try:
        yield
    finally:
        _importing = before


def may_import() -> bool:
    """True if code that a file names may be imported here."""
    return _importing


def search_working_directory() -> None:
    """Let modules in the current directory be imported: an `r2v` that pip installed looks only beside itself. The
    directory comes last, so that no file there stands in for an installed module."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()


def _remedy() -> str:
    return f"searched {Path.cwd()}, PYTHONPATH and installed packages"


def is_dotted(spec: str) -> bool:
    """Whether a configured name is a path `package.module:name`, not a built-in one."""
    return _DOTTED.fullmatch(spec) is not None


def require_name(key: str, spec: str, builtin: Collection[str]) -> None:
    """Raises UsageError, with the nearest built-in name, unless `spec` is built in or a path. Imports nothing."""
    if spec not in builtin and not is_dotted(spec):
        raise UsageError(f"{key}={spec}: unknown; {nearest(spec, builtin)} (or a path package.module:name of your own)")


def load_class(key: str, spec: str, builtin: Collection[str], protocol: type, *, by_user: bool = False) -> type[Any]:
    """The class at `package.module:Class`, with every method of `protocol`; nothing is made of it.

    Raises UsageError as `load_attribute` does, and naming what the class lacks, or what else stands there.
    """
    found = load_attribute(key, spec, builtin, by_user=by_user)
    if not isinstance(found, type):
        raise UsageError(f"{key}={spec}: is a {type(found).__name__}, not a class; name a {protocol.__name__}")
    members = [*protocol.__annotations__, *_methods(protocol)]
    if any(not callable(getattr(found, name, None)) for name in _methods(protocol)):
        missing = ", ".join(name for name in members if not hasattr(found, name))
        raise UsageError(f"{key}={spec}: is no {protocol.__name__}: it lacks {missing}")
    return found


def _methods(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


def load_function(key: str, spec: str, builtin: Collection[str], parameters: Sequence[str]) -> Callable[..., Any]:
    """The function at `package.module:name`, whose parameters are named as these. `key` is the configuration key that
    names it, `builtin` the built-in names. Raises UsageError as `load_attribute` does, and for anything else."""
    return require_function(key, spec, load_attribute(key, spec, builtin), parameters)


def require_function(key: str, spec: str, found: Any, parameters: Sequence[str]) -> Callable[..., Any]:
    """`found`, where it is a Python function or class method of these parameters and no others. Raises UsageError."""
    wanted = f"a function of ({', '.join(parameters)})"
    if not (inspect.isfunction(found) or inspect.ismethod(found)):
        raise UsageError(f"{key}={spec}: is a {type(found).__name__}; name {wanted}")
    if (taken := tuple(inspect.signature(found).parameters)) != tuple(parameters):
        raise UsageError(f"{key}={spec}: takes ({', '.join(taken)}); name {wanted}")
    return found


def load_attribute(key: str, spec: str, builtin: Collection[str], *, by_user: bool = False) -> Any:
    """What stands at `package.module:name`, whatever it is. One line says what is imported before it is. `by_user`: an
    environment variable of the user's names it, and no file.

    Raises NotImported within `importing_nothing`, unless it is named `by_user`; UsageError in one line where `spec` is
    neither a path nor built in (with the nearest built-in name), the module is Python's own, cannot be imported, or has
    no such name (with the nearest it has).
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
    except Exception as error:  # a module of somebody else's may raise anything while it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{key}={spec}: cannot import {module_name} ({reason}); {_remedy()}") from error
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UsageError(f"{key}={spec}: {module_name} has no {name}; {nearest(name, public)}")
    return getattr(module, name)


def _is_own(spec: str) -> bool:
    """True if the path is of R2V's own."""
    return spec.startswith("r2v.")


@cache
def _announce(key: str, spec: str) -> None:
    """Say what is about to be imported, once in a process. R2V's own modules need no word."""
    if _is_own(spec):
        return
    if (file := source_file(spec)) is None:
        raise UsageError(f"{key}={spec}: cannot import {spec.partition(':')[0]} (no such module); {_remedy()}")
    logger.info("importing %s=%s from %s", key, spec, file)


def source_sha256(key: str, spec: str) -> str:
    """Hex SHA-256 of the file that defines the module of `spec`; "" where it has none, as a namespace package.

    Imports nothing, not even the packages that the module is in. Raises UsageError where there is no such module.
    """
    file = source_file(spec)
    if file is None:
        raise UsageError(f"{key}={spec}: there is no module {spec.partition(':')[0]}; {_remedy()}")
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def source_file(spec: str) -> Path | None:
    """The file that importing the module of `spec` would run, its folder for a namespace package; None where there is
    no such module. Nothing is imported."""
    folders: list[str] | None = None
    found: ModuleSpec | None = None
    importlib.invalidate_caches()
    words = spec.partition(":")[0].split(".")
    for depth in range(len(words)):
        found = _find(".".join(words[: depth + 1]), folders)
        if found is None:
            return None
        folders = _folders(found)
    assert found is not None
    if found.origin is not None and Path(found.origin).is_file():
        return Path(found.origin)
    return Path(folders[0]) if folders else Path(found.origin or found.name)


def _find(name: str, folders: list[str] | None) -> ModuleSpec | None:
    """What Python would find for this name, by the finders it would ask, in the folder of the command as the last."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            here = [] if "" in sys.path else [str(Path.cwd())]
            # the last word alone: by its full name a namespace package would ask for its parent, not imported here
            spec = PathFinder.find_spec(name.rpartition(".")[2], [*sys.path, *here] if folders is None else folders)
        else:
            spec = finder.find_spec(name, folders)
        if spec is not None:
            return spec
    return None


def _folders(spec: ModuleSpec) -> list[str]:
    """Where the submodules of a package lie. A namespace package asks for its parent as soon as it is iterated, which
    is not imported here, so its plain list is read."""
    locations = spec.submodule_search_locations
    return [] if locations is None else list(getattr(locations, "_path", locations))
