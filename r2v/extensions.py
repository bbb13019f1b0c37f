"""Extension points: functions and classes of one's own, named in the configuration by `package.module:name`.

    checker = load_object("hierarchical.problems.checker", "mypackage.checks:units", ["auto", "numeric"])

The module is an installed package's, or lies on `PYTHONPATH` or in the folder where the command was started, which is
the checkout in a Slurm job; nothing is registered. `source_sha256` goes into a fingerprint in place of a version
number, so an edited extension makes a new artifact.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from r2v.errors import UsageError, nearest


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
    module, _, name = spec.partition(":")
    return bool(module and name)


def require_name(key: str, spec: str, builtin: Collection[str]) -> None:
    """Raises UsageError, with the nearest built-in name, unless `spec` is built in or a path. Imports nothing."""
    if spec not in builtin and not is_dotted(spec):
        raise UsageError(f"{key}={spec}: unknown; {nearest(spec, builtin)} (or a path package.module:name of your own)")


def load_object(key: str, spec: str, builtin: Collection[str]) -> Any:
    """The callable at `package.module:name`. `key` is the configuration key that names it, `builtin` the built-in
    names. Raises UsageError as `load_attribute` does, and where the object cannot be called."""
    found = load_attribute(key, spec, builtin)
    if not callable(found):
        name = spec.partition(":")[2]
        raise UsageError(f"{key}={spec}: {name} is a {type(found).__name__}, which cannot be called; name a function")
    return found


def load_attribute(key: str, spec: str, builtin: Collection[str]) -> Any:
    """What stands at `package.module:name`, whatever it is.

    Raises UsageError in one line where `spec` is neither a path nor built in (with the nearest built-in name), the
    module cannot be imported, or has no such name (with the nearest it has).
    """
    require_name(key, spec, builtin)
    search_working_directory()
    module_name, _, name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module of somebody else's may raise anything while it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{key}={spec}: cannot import {module_name} ({reason}); {_remedy()}") from error
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UsageError(f"{key}={spec}: {module_name} has no {name}; {nearest(name, public)}")
    return getattr(module, name)


def source_sha256(key: str, spec: str) -> str:
    """Hex SHA-256 of the file that defines the module of `spec`; "" where it has none, as a namespace package.

    Raises UsageError where there is no such module.
    """
    module_name = spec.partition(":")[0]
    search_working_directory()
    try:
        found = find_spec(module_name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UsageError(f"{key}={spec}: there is no module {module_name}; {_remedy()}")
    if found.origin is None or not Path(found.origin).is_file():
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
