"""Failures of ranks: the command's exception, from the ranks' records and exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from r2v.errors import BY_EXIT_CODE, EnvironmentFault, FailureKind, Interrupted
from r2v.storage import record

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_KILLED_TOGETHER = 5
"""Seconds after the first death within which another rank may be the cause."""


def cause_of(folders: Sequence[Path], deaths: Mapping[int, tuple[int, int]], *, stop_requested: bool) -> Exception:
    """Return the exception for failed ranks. `deaths`: rank -> (exit code, time). The first failure is the cause;
    errors of the other ranks are consequences. A killed rank has no record. `stop_requested`: the ranks were asked to
    stop."""
    first = min((at for _, at in deaths.values()), default=0)
    for index, (code, at) in sorted(deaths.items()):
        if at <= first + _KILLED_TOGETHER and not any((folder / f"{index}.json").exists() for folder in folders):
            if code == -signal.SIGKILL:
                return _killed(index)
            if -code in _CRASHES:
                return _crashed(index, signal.Signals(-code))
    records = sorted(
        (json.loads(path.read_text()) for folder in folders for path in folder.glob("*.json")),
        key=lambda failure: failure["time"],
    )
    if not records and stop_requested:
        return stopped()
    if not records:
        return EnvironmentFault(f"ranks ended with {[code for code, _ in deaths.values()]} and left no record of why")
    first_error = records[0]["error"]
    recorded = record.Recorded(first_error)
    recorded.add_note(records[0]["trace"])
    ours = BY_EXIT_CODE.get(first_error["exit_code"])
    if ours is None:
        return recorded
    error = ours(first_error["message"])
    error.__cause__ = recorded
    return error


def stopped() -> Exception:
    """Return the exception of a command whose ranks stopped on request."""
    return Interrupted("stopped; the same command continues")


def _crashed(index: int, by: signal.Signals) -> Exception:
    message = (
        f"rank {index} crashed ({by.name}) in a library and raised no error; what it wrote stands above. "
        "The same command goes on from the last checkpoint"
    )
    return died(message, by.name, "killed")


def _killed(index: int) -> Exception:
    """Return the exception for a single killed rank: a machine out of memory kills one process of a job."""
    message = (
        f"rank {index} was killed from outside (signal 9), as a machine does that is out of memory; run the same "
        "command again with more memory, it goes on from its checkpoint"
    )
    return died(message, "SIGKILL", "host_oom")


def died(message: str, by: str, kind: FailureKind) -> Exception:
    """Return an EnvironmentFault that is recorded as a failure of this kind, which selects the healing."""
    error = EnvironmentFault(message)
    error.__cause__ = record.Recorded(record.entry(by, kind, error.exit_code, message))
    return error
