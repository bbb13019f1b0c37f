"""Logging: one line per event on stderr, progress bars for long work, and metrics in wandb.

Inside a Slurm job, progress goes into the job's record (`r2v.storage.record`).
"""

from __future__ import annotations

import importlib.util
import json
import logging
import netrc
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

from r2v.console import printable, unfiltered
from r2v.errors import UsageError
from r2v.storage import record

_EVERY = 10.0
"""Seconds between two lines of the record: readers poll it seldom, and shared disks are slow."""

logger = logging.getLogger("r2v")


def setup(verbose: bool = False) -> None:
    """Send R2V's own lines to stderr as they are, and silence bitsandbytes' advice on missing kernels."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableFormatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


class _PrintableFormatter(logging.Formatter):
    """Lines of the log as a terminal may see them: what others wrote in them is shown, never obeyed."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def require_wandb(mode: str) -> None:
    """Raises UsageError, before a stage works for what it could not record, where wandb is asked for and is not
    installed, or online without a key. WANDB_MODE in the environment wins over `mode`."""
    mode = os.environ.get("WANDB_MODE", mode)
    if mode == "disabled":
        return
    if importlib.util.find_spec("wandb") is None:
        raise UsageError(
            f"logging.wandb={mode}: wandb is not installed; pip install 'r2v[wandb]' or set it to disabled"
        )
    if mode == "online" and not (os.environ.get("WANDB_API_KEY") or _has_login()):
        raise UsageError(
            "logging.wandb=online: no key; set WANDB_API_KEY, run `wandb login`, or set it to offline or disabled"
        )


def _has_login() -> bool:
    """Whether `wandb login` has left a key in the user's netrc."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def to_wandb(
    mode: str, project: str, job: str, figures: Mapping[str, Any], folder: Path, series: Path | None = None
) -> None:
    """Record a finished job's figures as one wandb run, behind the lines of `series` (JSON Lines, each with its
    "iteration") where there are some; offline files land under `folder`/wandb. WANDB_MODE in the environment wins
    over `mode`. Raises UsageError as `require_wandb` does."""
    mode = os.environ.get("WANDB_MODE", mode)
    if mode == "disabled":
        return
    require_wandb(mode)
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    with wandb.init(
        project=project,
        name=job,
        group=job,
        mode=cast(Any, mode),
        dir=str(folder),
        settings=wandb.Settings(silent=True),
    ) as run:
        for line in series.read_text().splitlines() if series is not None and series.exists() else ():
            record_line = json.loads(line)
            run.log(dict(_numbers(record_line)), step=record_line["iteration"])
        run.log(dict(_numbers(figures)))


def _numbers(figures: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{stem}{name}/")
        elif isinstance(value, (int, float)):
            yield stem + name, value


class Progress:
    """How far something is: a bar on a terminal, lines in the record of a Slurm job, nothing in a log file.

        with Progress("collect", 100) as bar:
            bar.advance()

    `done` are finished already. One without a name stays silent.
    """

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self._what, self._total, self._done = what, total, done
        self._figures: dict[str, float] = {}
        self._reported_at = -_EVERY
        self._bar: Any = None
        if what and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                desc=f"  {printable(what)}",
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
        if time.monotonic() - self._reported_at >= _EVERY:
            self._report()

    def _report(self) -> None:
        if self._what:
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
