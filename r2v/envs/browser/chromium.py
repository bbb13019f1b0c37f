"""Chromium: search for the program and its command-line flags."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from r2v.errors import UsageError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
"""Program names searched on PATH, in order; Debian's is the first."""
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
    """Return the browser in R2V_BROWSER, or the first installed of PROGRAMS. Raises UsageError with the remedy."""
    if path := os.environ.get("R2V_BROWSER"):
        if os.access(path, os.X_OK) and Path(path).is_file():
            return Path(path).resolve()
        raise UsageError(f"R2V_BROWSER={path}: not a program; name a Chromium, or unset it to search PATH")
    for name in PROGRAMS:
        if program := shutil.which(name):
            return Path(program)
    raise UsageError(
        f"no browser: looked for {', '.join(PROGRAMS)} on PATH; install Debian's package chromium (in a checkout: make "
        "browser), or name one in R2V_BROWSER"
    )


def chromium_flags() -> list[str]:
    """Return the flags of every browser. Chromium refuses to run its sandbox as root, so root gets --no-sandbox."""
    return [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def require_extra(extra: str, module: str) -> None:
    """Raise UsageError with the install command if an extra's module is missing."""
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        there = False
    if not there:
        raise UsageError(
            f"env.benchmark={extra}: needs {module}, which is not installed; pip install -e '.[{extra}]' (Python 3.11 "
            "or 3.12; in a checkout: make browser)"
        )
