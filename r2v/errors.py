"""Every way R2V refuses, and the exit code each one ends in.

    R2VError
    ├── UsageError          2   an option or a configuration value that cannot be
    ├── InputError          3   an input file that is missing, cut, malformed or leaks between splits
    ├── EmptyResult         4   the stage ran and nothing was left; the counts say where it went
    ├── EnvironmentFault    5   a disk, a browser, a provider: the world failed, not the user
    ├── Held                6   another process is working on the same thing
    └── Interrupted        75   stopped on request; the same command continues

A message is one line: what was asked, what was got, what is allowed, the remedy. The command line prints
it without a traceback and exits with the code; a library user catches the class.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class R2VError(Exception):
    """Base of all errors that a user can cause or mend."""

    exit_code = 1


class UsageError(R2VError):
    """An option, argument or configuration value that cannot be."""

    exit_code = 2


class InputError(R2VError):
    """An input that is missing, incomplete, malformed, or breaks a split."""

    exit_code = 3


class EmptyResult(R2VError):
    """A stage that ran to its end and has nothing to hand on."""

    exit_code = 4


class EnvironmentFault(R2VError):
    """The machine or a service failed: full disk, dead browser, refused request."""

    exit_code = 5


class Held(R2VError):
    """Another process holds the lease on the same artifact or run."""

    exit_code = 6


class Interrupted(R2VError):
    """Stopped on request with everything finished kept; the same command continues."""

    exit_code = 75


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A hint naming the allowed spelling closest to `word`, or listing a few when none is close.

    >>> nearest("lorar", ["lora_r", "lr"])
    'did you mean lora_r?'
    """
    options = sorted(allowed)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    shown = ", ".join(options[:12]) + (", ..." if len(options) > 12 else "")
    return f"allowed: {shown}"
