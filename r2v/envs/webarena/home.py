"""Home: where `r2v webarena install` puts the child interpreter of WebArena's worlds.

venv/          BrowserGym's adapter, the official tasks and evaluators, and webarena-verified
nltk_data/     punkt_tab, by which the string evaluator takes an answer apart
versions.json  what is installed; written last
"""

from __future__ import annotations

import os
from pathlib import Path

from r2v.errors import UsageError

WEBARENA_HOME_VERSION = "1"
"""Of what is installed there."""
INSTALL_WEBARENA = "r2v webarena install"


def webarena_home() -> Path:
    """The folder, below the user's data; nothing is made."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "r2v" / f"webarena-{WEBARENA_HOME_VERSION}"


def is_installed() -> bool:
    """Whether the child interpreter is whole."""
    return (webarena_home() / "versions.json").exists()


def require_installed() -> Path:
    """The folder. Raises UsageError with the remedy where it is not whole."""
    home = webarena_home()
    if not is_installed():
        raise UsageError(
            f"env.benchmark=webarena: its child interpreter is not installed here ({home}); run `{INSTALL_WEBARENA}`"
        )
    return home


def child_python() -> Path:
    """The interpreter of the worlds. Raises UsageError where it is not installed."""
    return require_installed() / "venv" / "bin" / "python"


def child_package(name: str) -> Path:
    """The folder of a package in the child's environment. Raises UsageError where nothing is installed."""
    site = next((require_installed() / "venv" / "lib").glob("python3*/site-packages"))
    return site / name
