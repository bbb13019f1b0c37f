"""What a Slurm job leaves of what went on inside it: `events.jsonl` as it works, `error.json` where it failed.

Both lie in the folder that R2V_RECORD names, which the job's runner makes, one per Slurm job; without it nothing
is written. Slurm alone can't tell a bug from a GPU that was too small: the kind in `error.json` can, and healing
goes by it.

    {"at": "2026-11-20T03:00:00+00:00", "restart": 0, "what": "bc", "done": 40, "total": 113, "loss": 0.7}
    {"type": "torch.OutOfMemoryError", "kind": "cuda_oom", "exit_code": 1, "message": ..., "where": ...}
"""

from __future__ import annotations

import errno
import json
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from r2v.errors import EnvironmentFault, Interrupted, R2VError
from r2v.storage.files import write_json

FOLDER = "R2V_RECORD"
"""The environment variable that names the folder."""
EVENTS, ERROR = "events.jsonl", "error.json"

DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a full, exhausted or read-only disk: the world's fault, not ours."""

_KINDS = {2: "usage", 3: "input", 4: "empty", 5: "environment", 6: "held", 75: "interrupted"}
_CUDA_OOM = re.compile(r"CUDA out of memory|CUDA error: out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED")
_HOST_OOM = re.compile(r"[Cc]an't allocate memory|Cannot allocate memory|not enough memory: you tried to allocate")
_PACKAGE = Path(__file__).parents[1]


class Recorded(Exception):
    """An error of another process, which described it already."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(f"{record['type']}: {record['message']} ({record['where']})")
        self.record = dict(record)


def event(what: str, done: int, total: int, figures: Mapping[str, float]) -> None:
    """Append one line on how far something is. A disk that refuses it does not stop the work it tells of."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    line = json.dumps(
        {
            "at": _now(),
            "restart": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            "what": what,
            "done": done,
            "total": total,
            **figures,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )
    with suppress(OSError):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / EVENTS).open("a") as file:
            file.write(line + "\n")


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
                write_json(Path(folder) / ERROR, describe(error))
        raise


def describe(error: BaseException) -> dict[str, Any]:
    """The error as `error.json` holds it: its type, kind and exit code, the first line of what it says, and the
    innermost line of ours (file:line) that it passed through."""
    for one in (error, error.__cause__):
        if isinstance(one, Recorded):
            return one.record
    kind, code = _kind(error)
    name = (
        type(error).__qualname__
        if type(error).__module__ == "builtins"
        else f"{type(error).__module__}.{type(error).__qualname__}"
    )
    message = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, KeyboardInterrupt):
        message = "stopped by a signal; the same command continues"
    return {"type": name, "kind": kind, "exit_code": code, "message": message, "where": _where(error)}


def _kind(error: BaseException) -> tuple[str, int]:
    if isinstance(error, R2VError) and error.exit_code in _KINDS:
        return _KINDS[error.exit_code], error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", Interrupted.exit_code
    said = str(error)
    if type(error).__name__ == "OutOfMemoryError" or _CUDA_OOM.search(said):
        return "cuda_oom", 1
    if isinstance(error, MemoryError) or _HOST_OOM.search(said):
        return "host_oom", 1
    if isinstance(error, OSError) and error.errno in DISK_REFUSES:
        return "environment", EnvironmentFault.exit_code
    return "bug", 1


def _where(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    if not frames:
        return None
    frame = (own or frames)[-1]
    file = Path(frame.filename)
    return f"{file.relative_to(_PACKAGE.parent) if own else file}:{frame.lineno}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
