"""What a person sees while it works: one line per event on stderr, progress bars on long loops, and metrics
to a file (and to wandb where asked)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger("r2v")


def setup(verbose: bool = False) -> None:
    """Send R2V's own lines to stderr, bare; libraries only speak up with warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar on a terminal; without one, a line at every tenth so that a log stays short."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if sys.stderr.isatty() and not os.environ.get("CI"):
        from tqdm import tqdm

        yield from tqdm(items, desc=f"  {what}", total=total, leave=False, unit="")
        return
    step = max(1, (total or 0) // 10)
    for index, item in enumerate(items, start=1):
        yield item
        if total and total >= 20 and (index % step == 0) and index < total:
            logger.debug("  %s %d/%d", what, index, total)
