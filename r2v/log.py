"""Logging: one line per event on stderr, and metrics in wandb."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import netrc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from r2v.console import printable

CURVES_FILE = "R2V_CURVES"
"""The environment variable that names the file which wandb's own process reads."""
WANDB_PROJECT = "r2v-agent"
"""Project of wandb where the variable WANDB_PROJECT names none."""
WANDB_GROUP = "R2V_EXPERIMENT"
"""The environment variable that names the experiment of which this process is a run: its runs are one group."""
WANDB_PATIENCE = 60.0
"""Seconds that a stage waits at its end for wandb to send what is left."""

logger = logging.getLogger("r2v")


def setup(verbose: bool = False) -> None:
    """Send R2V's own lines to stderr as they are, and silence bitsandbytes' advice on missing kernels."""
    handler = _StderrHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


class _StderrHandler(logging.Handler):
    """Writes lines to stderr as it is when they are logged: above the bars, while there are any."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


class PrintableFormatter(logging.Formatter):
    """Lines of the log as a terminal may see them: what others wrote in them is shown, never obeyed."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def wandb_mode(mode: str) -> str:
    """What becomes of a mode here: disabled, offline or online. WANDB_MODE wins over it; `auto` is online once `wandb
    login` or WANDB_API_KEY has left a key. What cannot be had is a line, never an error: figures are not the work."""
    mode = {"run": "online", "dryrun": "offline"}.get(chosen := os.environ.get("WANDB_MODE", mode), chosen)
    key = bool(os.environ.get("WANDB_API_KEY")) or _has_login()
    installed = importlib.util.find_spec("wandb") is not None
    if mode == "auto":
        return "online" if key and installed else "disabled"
    if mode == "disabled":
        return mode
    if not installed:
        logger.warning("wandb=%s: wandb is not installed, nothing is logged there; pip install 'r2v[wandb]'", mode)
        return "disabled"
    if mode == "online" and not key:
        logger.warning("wandb=online: no key, so offline; set WANDB_API_KEY or run `wandb login`, then `wandb sync`")
        return "offline"
    return mode if mode in ("online", "offline") else "disabled"


def _has_login() -> bool:
    """Whether `wandb login` has left a key in the user's netrc."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


@dataclass(frozen=True, kw_only=True)
class WandbRun:
    """One wandb run: a stage's, the same for all attempts at its artifact; the runs of a chain are one group."""

    mode: str
    project: str
    id: str
    job: str
    group: str
    config: Mapping[str, Any]
    folder: Path
    """Below which wandb writes, in wandb/."""


@contextmanager
def in_wandb(run: WandbRun) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Within the block the figures of every Progress, of this process and of its ranks, and those of `curve` go to
    wandb as they come; what is yielded sends those of the end.

    wandb itself runs in a process of its own, fed by a file: whatever it does, it cannot end, stop or delay the work by
    more than WANDB_PATIENCE at its end.
    """
    mode = wandb_mode(run.mode)
    if mode == "disabled":
        yield lambda figures: None
        return
    curves = run.folder / "wandb" / f"curves-{run.id}.jsonl"
    writer = None
    with suppress(OSError):
        curves.parent.mkdir(parents=True, exist_ok=True)
        said = {**asdict(run), "mode": mode, "folder": str(run.folder)}
        curves.write_text(json.dumps({"run": said}, default=str) + "\n")
        os.environ[CURVES_FILE] = str(curves)
        writer = subprocess.Popen([sys.executable, "-m", "r2v.wandb_writer", str(curves)], stdin=subprocess.DEVNULL)

    code = 1
    try:
        yield curve
        code = 0
    finally:
        _curve_line({"end": code})
        os.environ.pop(CURVES_FILE, None)
        if writer is not None:
            _await(writer, curves)


def _await(writer: subprocess.Popen[bytes], curves: Path) -> None:
    """Give the writer its time; what it has not sent by then lies on the disk."""
    try:
        if writer.wait(WANDB_PATIENCE) == 0:
            curves.unlink(missing_ok=True)
            return
    except subprocess.TimeoutExpired:
        writer.kill()
    logger.warning("wandb did not take all figures; they are in %s: wandb sync %s/*run-*", curves, curves.parent)


def curve(figures: Mapping[str, Any]) -> None:
    """Send one point of each of these curves to wandb, where it is on; what is no finite number is left out."""
    if numbers := dict(_numbers(figures)):
        _curve_line({"log": numbers})


def _curve_line(value: Mapping[str, Any]) -> None:
    """Append one line for wandb's own process; a disk that refuses it stops nothing."""
    if path := os.environ.get(CURVES_FILE):
        with suppress(OSError, ValueError), Path(path).open("a") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")


def _numbers(figures: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{stem}{name}/")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield stem + name, value
