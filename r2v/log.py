"""Logging: one line per event on stderr, progress bars for long work, and curves for trackers.

Inside a Slurm job, progress goes into the job's record (`r2v.storage.record`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

from r2v.console import duration, figures_line, printable, unfiltered
from r2v.storage import record

_EVERY = 10.0
"""Seconds between two lines of the record: readers poll it seldom, and shared disks are slow."""
_EVERY_LINE = 60.0
"""Seconds between two lines of a log that is no terminal, such as that of a batch job."""
_stage: ContextVar[str] = ContextVar("stage", default="")

CURVES_FILE = "R2V_CURVES"
"""The environment variable that names the file which the trackers' processes read (`r2v.trackers`)."""

logger = logging.getLogger("r2v")


def setup(verbose: bool = False) -> None:
    """Send R2V's own lines to stderr as they are, and silence bitsandbytes' advice on missing kernels."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


class PrintableFormatter(logging.Formatter):
    """Lines of the log as a terminal may see them: what others wrote in them is shown, never obeyed."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def curve(figures: Mapping[str, Any]) -> None:
    """Send one point of each of these curves to the trackers that are on; what is no finite number is left out."""
    if numbers := dict(_numbers(figures)):
        curve_line({"log": numbers})


def curve_line(value: Mapping[str, Any]) -> None:
    """Append one line for the trackers' processes; a disk that refuses it stops nothing."""
    if path := os.environ.get(CURVES_FILE):
        with suppress(OSError, ValueError), Path(path).open("a") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")


def _numbers(figures: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{stem}{name}/")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield stem + name, value


@contextmanager
def in_stage(text: str) -> Iterator[None]:
    """What is done in this block is this stage's, such as `stage 9 of 10`: its progress says so."""
    token = _stage.set(text)
    try:
        yield
    finally:
        _stage.reset(token)


class Progress:
    """How far something is: a bar on a terminal, lines in the record of a Slurm job, one line a minute elsewhere.

        with Progress("collect", 100) as bar:
            bar.advance()

    `done` are finished already. One without a name stays silent.
    """

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self._what, self._total, self._done = what, total, done
        self._figures: dict[str, float] = {}
        self._reported_at = -_EVERY
        self._began = self._line_at = time.monotonic()
        self._done_before = done
        self._bar: Any = None
        if what and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                desc="  " + ", ".join(filter(None, (printable(what), _stage.get()))),
                total=total,
                initial=done,
                leave=False,
                unit="",
                file=unfiltered(sys.stderr),
            )

    def advance(self, by: int = 1, **figures: float) -> None:
        """Count `by` more as done; figures (a loss, a rate) are kept until they are given anew."""
        self._done += by
        self._figures |= figures
        if self._bar is not None:
            self._bar.update(by)
            self._bar.set_postfix_str(figures_line(self._figures), refresh=False)
        elif self._what and time.monotonic() - self._line_at >= _EVERY_LINE:
            self._line_at = time.monotonic()
            logger.info("  %s", self.line(self._line_at - self._began))
        if time.monotonic() - self._reported_at >= _EVERY:
            self._report()

    def line(self, seconds: float) -> str:
        """How far it is after so many seconds: `cloning, stage 3 of 10: 40 of 113, loss 0.7, 12 min left`."""
        fresh = self._done - self._done_before
        left = f"{duration((self._total - self._done) * seconds / fresh)} left" if fresh > 0 else ""
        name = ", ".join(filter(None, (self._what, _stage.get())))
        parts = (f"{self._done} of {self._total}", figures_line(self._figures), left)
        return f"{name}: {', '.join(filter(None, parts))}"

    def _report(self) -> None:
        if self._what:
            if self._figures:
                stem = f"{self._what}/"
                curve({f"{stem}{name}": value for name, value in {**self._figures, "done": self._done}.items()})
            record.event(self._what, self._done, self._total, self._figures)
        self._reported_at = time.monotonic()

    def __enter__(self) -> Progress:
        self._report()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._report()
        if self._bar is not None:
            self._bar.close()
