"""Extension points: functions and classes of one's own, named in the configuration by `package.module:name`.

    checker = load_object("hierarchical.problems.checker", "mypackage.checks:units", ["auto", "numeric"])

The module is imported from `PYTHONPATH` or an installed package; nothing is registered. `source_sha256` goes into a
fingerprint in place of a version number, so an edited extension makes a new artifact.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from r2v.errors import UsageError, nearest

_REMEDY = "is its folder on PYTHONPATH, or the package installed?"


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
    names.

    Raises UsageError in one line where `spec` is neither a path nor built in (with the nearest built-in name), the
    module cannot be imported, has no such name (with the nearest it has), or the object cannot be called.
    """
    require_name(key, spec, builtin)
    module_name, _, name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module of somebody else's may raise anything while it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{key}={spec}: cannot import {module_name} ({reason}); {_REMEDY}") from error
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UsageError(f"{key}={spec}: {module_name} has no {name}; {nearest(name, public)}")
    found = getattr(module, name)
    if not callable(found):
        raise UsageError(f"{key}={spec}: {name} is a {type(found).__name__}, which cannot be called; name a function")
    return found


def source_sha256(key: str, spec: str) -> str:
    """Hex SHA-256 of the file that defines the module of `spec`; "" where it has none, as a namespace package.

    Raises UsageError where there is no such module.
    """
    module_name = spec.partition(":")[0]
    try:
        found = find_spec(module_name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UsageError(f"{key}={spec}: there is no module {module_name}; {_REMEDY}")
    if found.origin is None or not Path(found.origin).is_file():
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
