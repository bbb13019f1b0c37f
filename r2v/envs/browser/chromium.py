"""Finding Chromium, and how it is started."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from r2v.errors import UsageError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
"""Names under which a browser is looked for; Debian's is the first."""
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> Path:
    """The browser in R2V_BROWSER, or the first of PROGRAMS that is installed. Raises UsageError with the remedy."""
    if path := os.environ.get("R2V_BROWSER"):
        if os.access(path, os.X_OK) and Path(path).is_file():
            return Path(path).resolve()
        raise UsageError(f"R2V_BROWSER={path}: no program; name a Chromium, or unset it to have one found")
    for name in PROGRAMS:
        if program := shutil.which(name):
            return Path(program)
    raise UsageError(
        f"no browser: looked for {', '.join(PROGRAMS)} on PATH; install Debian's package chromium (in a checkout: make "
        "browser), or name one in R2V_BROWSER"
    )


def chromium_flags() -> list[str]:
    """What every browser is started with. Its own sandbox is left out for root alone, who cannot have it."""
    return [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def require_extra(extra: str, module: str) -> None:
    """Raises UsageError with the line that installs an extra, where its module is not there."""
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        there = False
    if not there:
        raise UsageError(
            f"env.benchmark={extra}: needs {module}, which is not installed; pip install -e '.[{extra}]' (Python 3.11 "
            "or 3.12; in a checkout: make browser)"
        )
