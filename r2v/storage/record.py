"""Record of a job: `events.jsonl`, its progress, and `error.json`, the error that ended it.

Both lie in the folder named by R2V_RECORD, which the job's runner makes for each Slurm job; without it nothing is
written. Slurm cannot distinguish a bug from a GPU that is too small; the kind in `error.json` does
(r2v.errors.FailureKind) and decides on healing.

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
"""Environment variable with the record's folder."""
UNATTENDED = "R2V_UNATTENDED"
"""Environment variable set in a chain's job if the user did not request this very stage."""
EVENTS, ERROR = "events.jsonl", "error.json"
HELD_BY = "held_by_job"
"""Key of a lease conflict: the Slurm job that holds the lease, "" for a process outside Slurm."""
_part: ContextVar[str] = ContextVar("part", default="")
_listener: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("listener", default=None)

_PACKAGE = Path(__file__).parents[1]


class Recorded(Exception):
    """An error of another process, with that process's record of it."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(f"{record['type']}: {record['message']} ({record['where']})")
        self.record = dict(record)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Prefix the names of events in this block with `name`, so that equal names in two parts of a job stay apart."""
    token = _part.set(name)
    try:
        yield
    finally:
        _part.reset(token)


@contextmanager
def listened(listener: Callable[[str, int, int], None]) -> Iterator[None]:
    """Call `listener(name, done, total)` for each event in the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def event(what: str, done: int, total: int, figures: Mapping[str, float]) -> None:
    """Append a line with the progress `done` of `total` of the work named `what`. Write errors are ignored."""
    name = f"{_part.get()}: {what}" if _part.get() else what
    if (listener := _listener.get()) is not None:
        listener(name, done, total)
    _append({"what": name, "done": done, "total": total, **figures})


def wait(what: str, why: str | None, until: float = 0.0) -> None:
    """Append a line on a wait for `what`, at most until `until` (seconds since the epoch). why None: the wait is
    over."""
    _append({"wait": what, "why": why, "until": _iso(datetime.fromtimestamp(until, UTC))})


def _append(line: Mapping[str, Any]) -> None:
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    start = {"at": _iso(datetime.now(UTC)), "restart": int(os.environ.get("SLURM_RESTART_COUNT", "0"))}
    text = json.dumps({**start, **line}, ensure_ascii=False, separators=(",", ":"))
    with suppress(OSError):  # progress is no reason to stop the work
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / EVENTS).open("a") as file:
            file.write(text + "\n")


@contextmanager
def recording() -> Iterator[None]:
    """Write `error.json` for an error that ends the block, and raise it again."""
    try:
        yield
    except (SystemExit, BrokenPipeError):  # a requested exit, or a closed pager
        raise
    except BaseException as error:
        folder = os.environ.get(FOLDER)
        if folder:
            with suppress(EnvironmentFault):  # the failed disk itself may be the error
                write_json(Path(folder) / ERROR, hashed(describe(error)))
        raise


def describe(error: BaseException) -> dict[str, Any]:
    """Return the record of an error in `error.json`: type, kind, exit code, first line of the message, and the
    innermost line of this package (file:line) in its traceback."""
    for described in (error, error.__cause__):
        if isinstance(described, Recorded):
            return described.record
    kind, code = failure_of(error)
    message = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, KeyboardInterrupt):
        message = "stopped by a signal; the same command continues"
    record = entry(_type_name(error), kind, code, message, _where(error))
    if isinstance(error, LeaseConflict) and error.slurm_job is not None:
        record[HELD_BY] = error.slurm_job
    return record


def entry(type_: str, kind: FailureKind, exit_code: int, message: str, where: str | None = None) -> dict[str, Any]:
    """Return the content of an `error.json` for an error that this process has not caught."""
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
