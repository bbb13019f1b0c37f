"""Home folder of WebArena's child interpreter, filled by `r2v webarena install`.

venv/          BrowserGym's adapter, the official tasks and evaluators, and webarena-verified
nltk_data/     punkt_tab, the string evaluator's tokenizer
versions.json  versions of the main packages; written last
"""

from __future__ import annotations

import os
from pathlib import Path

from r2v.errors import UsageError

WEBARENA_HOME_VERSION = "1"
"""Version of the installation's layout and pins."""
INSTALL_WEBARENA = "r2v webarena install"


def webarena_home() -> Path:
    """Return the home folder, below XDG_DATA_HOME, without creating it."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "r2v" / f"webarena-{WEBARENA_HOME_VERSION}"


def is_installed() -> bool:
    """True if the child interpreter is completely installed."""
    return (webarena_home() / "versions.json").exists()


def require_installed() -> Path:
    """Return the home folder. Raises UsageError with the remedy if the installation is missing or incomplete."""
    home = webarena_home()
    if not is_installed():
        raise UsageError(
            f"env.benchmark=webarena: its child interpreter is not installed here ({home}); run `{INSTALL_WEBARENA}`"
        )
    return home


def child_python() -> Path:
    """Return the interpreter of the worlds. Raises UsageError if it is not installed."""
    return require_installed() / "venv" / "bin" / "python"


def child_package(name: str) -> Path:
    """Return the folder of a package in the child's environment. Raises UsageError if the child is not installed."""
    site = next((require_installed() / "venv" / "lib").glob("python3*/site-packages"))
    return site / name
