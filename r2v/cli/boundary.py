"""The error boundary: whatever ends a command becomes one line on stderr and an exit code of `r2v.errors`.

    return guarded(lambda: act(arguments))

A traceback is printed for a bug of R2V alone, with where to report it; R2V_TRACEBACK=1 prints it for every error. All
that a command prints passes through `r2v.console.printable`, so that nothing in an episode or a provider's answer can
command the terminal.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from r2v.console import filtered_streams
from r2v.constraints import shown
from r2v.errors import CUDA_OOM, HOST_OOM, InputError, Interrupted, R2VError, UsageError, as_r2v_error
from r2v.log import logger, setup

TRACEBACK = "R2V_TRACEBACK"
"""Environment variable that, when set, has every error print its traceback."""
ISSUES = "https://github.com/r2v-agent/r2v/issues"


def guarded(act: Callable[[], int]) -> int:
    """Run a command; returns its exit code, or that of the error that ended it, which is told in one line."""
    with filtered_streams():
        setup()
        try:
            return act()
        except KeyboardInterrupt:
            logger.error("r2v: interrupted; the same command continues where this one stopped")
            return Interrupted.exit_code
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            return _explain(error)


def require_text(words: Sequence[str]) -> None:
    """Raises UsageError for an argument that is no text: bytes that are not UTF-8, or a NUL, which no file name has."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(f"argument {shown(word)}: not UTF-8") from None
        if "\0" in word:
            raise UsageError(f"argument {shown(word)}: holds a NUL character")


def require_usable_paths(arguments: argparse.Namespace) -> None:
    """Raises InputError for a path of the line that is neither a file nor a folder, such as a pipe that would be waited
    for, or that the system refuses to look at. One that is not there is for the command to judge."""
    for value in vars(arguments).values():
        if not isinstance(value, Path):
            continue
        try:
            mode = value.stat().st_mode
        except FileNotFoundError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InputError(f"{value}: neither a file nor a folder; name one")


def require_place(option: str, path: Path) -> None:
    """Raises InputError where a folder cannot be made at `path`, for a file stands there or above it."""
    for place in (path, *path.parents):
        if place.is_dir():
            return
        if place.exists() or place.is_symlink():
            raise InputError(f"{option} {path}: {place} is not a folder; name another")


def _explain(error: Exception) -> int:
    known = as_r2v_error(error)
    if known is not None:
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
        logger.error("r2v: %s", " ".join(str(known).split()))
        return known.exit_code
    line = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, MemoryError) or CUDA_OOM.search(str(error)) or HOST_OOM.search(str(error)):
        notes = getattr(error, "__notes__", [])
        if not notes or os.environ.get(TRACEBACK):
            traceback.print_exception(error)  # it says which phase asked for how much
        logger.error("r2v: out of memory: %s", "; ".join([line, *notes]))
    else:
        traceback.print_exception(error)
        logger.error("r2v: a bug of R2V: %s; please report it with the lines above: %s", line, ISSUES)
    return R2VError.exit_code
