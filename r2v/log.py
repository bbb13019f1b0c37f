"""What a person sees while it works: one line per event on stderr, and a bar on long work."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Any

logger = logging.getLogger("r2v")


def setup(verbose: bool = False) -> None:
    """Send R2V's own lines to stderr, bare."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False


class Progress:
    """A bar on a terminal, nothing in a log file: `with Progress("collect", 100) as bar: bar.advance()`."""

    def __init__(self, what: str, total: int) -> None:
        self._bar: Any = None
        if what and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc=f"  {what}", total=total, leave=False, unit="")

    def advance(self, by: int = 1) -> None:
        """That many more are done."""
        if self._bar is not None:
            self._bar.update(by)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
