"""The record of a job: `events.jsonl`, its progress while it works, and `error.json`, the error that ended it.

Both lie in the folder that R2V_RECORD names, which the job's runner makes, one per Slurm job; without it nothing
is written. Slurm alone cannot tell a bug from a GPU that was too small; the kind in `error.json` can
(r2v.errors.FailureKind), and healing goes by it.

    {"at": "2026-11-20T03:00:00+00:00", "restart": 0, "what": "bc", "done": 40, "total": 113, "loss": 0.7}
    {"at": "2026-11-20T03:00:00+00:00", "restart": 0, "wait": "openai", "why": "503 overloaded", "until": "2026-..."}
    {"type": "torch.OutOfMemoryError", "kind": "cuda_oom", "exit_code": 1, "message": ..., "where": ...}
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from r2v.errors import EnvironmentFault, FailureKind, LeaseConflict, failure_of
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed

FOLDER = "R2V_RECORD"
"""The environment variable that names the folder."""
UNATTENDED = "R2V_UNATTENDED"
"""The environment variable that says, in a job of a chain, that nobody asked for this very stage."""
EVENTS, ERROR = "events.jsonl", "error.json"
HELD_BY = "held_by_job"
"""Of a lease conflict: the Slurm job that has the lease, "" where a process outside of Slurm has it."""
_part: ContextVar[str] = ContextVar("part", default="")
_listener: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("listener", default=None)

_PACKAGE = Path(__file__).parents[1]


class Recorded(Exception):
    """An error of another process, which described it already."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(f"{record['type']}: {record['message']} ({record['where']})")
        self.record = dict(record)


@contextmanager
def part(name: str) -> Iterator[None]:
    """What is done in this block is a part of the job's work that has this name: its events say so, for what is called
    alike in two parts makes progress in each of them."""
    token = _part.set(name)
    try:
        yield
    finally:
        _part.reset(token)


@contextmanager
def listened(listener: Callable[[str, int, int], None]) -> Iterator[None]:
    """Within the block each event is also told: what is done, how much of it, of how much."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def event(what: str, done: int, total: int, figures: Mapping[str, float]) -> None:
    """Append one line on how far something is. A disk that refuses it does not stop the work it tells of."""
    name = f"{_part.get()}: {what}" if _part.get() else what
    if (listener := _listener.get()) is not None:
        listener(name, done, total)
    _append({"what": name, "done": done, "total": total, **figures})


def wait(what: str, why: str | None, until: float = 0.0) -> None:
    """Append one line on a wait: for what, why, and until when at most (seconds of the epoch). why None: it is over."""
    _append({"wait": what, "why": why, "until": _iso(datetime.fromtimestamp(until, UTC))})


def _append(line: Mapping[str, Any]) -> None:
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    start = {"at": _iso(datetime.now(UTC)), "restart": int(os.environ.get("SLURM_RESTART_COUNT", "0"))}
    text = json.dumps({**start, **line}, ensure_ascii=False, separators=(",", ":"))
    with suppress(OSError):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / EVENTS).open("a") as file:
            file.write(text + "\n")


@contextmanager
def recording() -> Iterator[None]:
    """Leave a record of the error that ends the block, and let it pass."""
    try:
        yield
    except (SystemExit, BrokenPipeError):
        raise
    except BaseException as error:
        folder = os.environ.get(FOLDER)
        if folder:
            with suppress(EnvironmentFault):  # where the disk is what failed, nothing can be left on it
                write_json(Path(folder) / ERROR, hashed(describe(error)))
        raise


def describe(error: BaseException) -> dict[str, Any]:
    """The error as `error.json` holds it: its type, kind and exit code, the first line of its message, and the
    innermost line of this package (file:line) that it passed through."""
    for described in (error, error.__cause__):
        if isinstance(described, Recorded):
            return described.record
    kind, code = failure_of(error)
    message = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, KeyboardInterrupt):
        message = "stopped by a signal; the same command continues"
    told = entry(_type_name(error), kind, code, message, _where(error))
    if isinstance(error, LeaseConflict) and error.slurm_job is not None:
        told[HELD_BY] = error.slurm_job
    return told


def entry(type_: str, kind: FailureKind, exit_code: int, message: str, where: str | None = None) -> dict[str, Any]:
    """The content of an `error.json`, for an error that this process has not caught itself."""
    return {"type": type_, "kind": kind, "exit_code": exit_code, "message": message, "where": where}


def _type_name(error: BaseException) -> str:
    name = type(error).__qualname__
    return name if type(error).__module__ == "builtins" else f"{type(error).__module__}.{name}"


def _where(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    if not frames:
        return None
    innermost = (ours or frames)[-1]
    file = Path(innermost.filename)
    return f"{file.relative_to(_PACKAGE.parent) if ours else file}:{innermost.lineno}"


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
