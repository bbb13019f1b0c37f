"""Renamed options: the old spelling still works, is left out of the help, and warns with the new one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from r2v.log import logger


class _RenamedOption(argparse.Action):
    """Stores its value as the new option does."""

    def __init__(self, *args: Any, replacement: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replacement = replacement

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        logger.warning("%s is the old name of %s; it still works", option_string, self.replacement)
        setattr(namespace, self.dest, True if self.nargs == 0 else values)


def add_renamed(parser: argparse.ArgumentParser, old: str, new: str, **kwargs: Any) -> None:
    """Accept the option `old` in place of `new`, which `parser` has already. Further arguments are those of
    add_argument: `type`, or nargs=0 for an option without a value."""
    parser.add_argument(
        old,
        action=_RenamedOption,
        replacement=new,
        dest=new.lstrip("-").replace("-", "_"),
        default=argparse.SUPPRESS,  # else it would overwrite the default of the new one
        help=argparse.SUPPRESS,
        **kwargs,
    )
