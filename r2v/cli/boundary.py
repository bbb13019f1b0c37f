"""The error boundary: every error of a command becomes one line on stderr and an exit code of `r2v.errors`.

    return guarded(lambda: act(arguments))

A traceback is printed only for a bug of R2V, with the address for reports; R2V_TRACEBACK=1 prints it for every error.
All output passes through `r2v.console.printable`, so that text of an episode or a provider cannot control the terminal.
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
"""Environment variable that makes every error print its traceback."""
ISSUES = "https://github.com/r2v-agent/r2v/issues"


def guarded(act: Callable[[], int]) -> int:
    """Run a command; returns its exit code, or that of its error, which is logged in one line."""
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
    """Raise UsageError for an argument that is not UTF-8 or holds a NUL, which no file name can."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(f"argument {shown(word)}: not UTF-8") from None
        if "\0" in word:
            raise UsageError(f"argument {shown(word)}: holds a NUL character")


def require_usable_paths(arguments: argparse.Namespace) -> None:
    """Raise InputError for a path that is neither a file nor a folder, such as a pipe, whose reading could block, or
    that cannot be inspected. The command itself judges missing ones."""
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
    """Raise InputError if a folder cannot be made at `path`, because it or a parent is a file."""
    for folder in (path, *path.parents):
        if folder.is_dir():
            return
        if folder.exists() or folder.is_symlink():
            raise InputError(f"{option} {path}: {folder} is not a folder; name another")


def _explain(error: Exception) -> int:
    r2v_error = as_r2v_error(error)
    if r2v_error is not None:
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
        logger.error(f"r2v: {' '.join(str(r2v_error).split())}")
        return r2v_error.exit_code
    line = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    if isinstance(error, MemoryError) or CUDA_OOM.search(str(error)) or HOST_OOM.search(str(error)):
        notes = getattr(error, "__notes__", [])
        if not notes or os.environ.get(TRACEBACK):
            traceback.print_exception(error)  # shows the phase and the size of the allocation
        logger.error(f"r2v: out of memory: {'; '.join([line, *notes])}")
    else:
        traceback.print_exception(error)
        logger.error(f"r2v: a bug of R2V: {line}; please report it with the lines above: {ISSUES}")
    return R2VError.exit_code
