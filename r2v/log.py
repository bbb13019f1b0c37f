"""Logging: one line per event on stderr, and curves for trackers."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from r2v.console import printable

CURVES_FILE = "R2V_CURVES"
"""Environment variable with the file of figures for the trackers' processes (`r2v.trackers`)."""

logger = logging.getLogger("r2v")


def setup(verbose: bool = False) -> None:
    """Log R2V's lines to stderr without prefixes, and silence bitsandbytes' advice on missing kernels."""
    handler = _StderrHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


class _StderrHandler(logging.Handler):
    """Handler that looks up stderr for each line, because progress bars replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


class PrintableFormatter(logging.Formatter):
    """Formatter of lines without control sequences, which texts from outside may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def curve(figures: Mapping[str, Any]) -> None:
    """Send one point of each curve to the active trackers; only finite numbers are sent."""
    if numbers := dict(_numbers(figures)):
        curve_line({"log": numbers})


def curve_line(value: Mapping[str, Any]) -> None:
    """Append one line for the trackers' processes. A failed write is ignored: figures must not stop a stage."""
    if path := os.environ.get(CURVES_FILE):
        with suppress(OSError, ValueError), Path(path).open("a") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")


def _numbers(figures: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{stem}{name}/")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield stem + name, value
