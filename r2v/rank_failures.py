"""Failures of ranks: what a command raises whose ranks ended badly, from their records and their exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from r2v.errors import BY_EXIT_CODE, EnvironmentFault, FailureKind, Interrupted
from r2v.storage import record

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_KILLED_TOGETHER = 5


def cause_of(folders: Sequence[Path], deaths: Mapping[int, tuple[int, int]], *, told: bool) -> Exception:
    """What to raise for ranks that ended badly: `deaths` are exit codes and times. What failed first is the cause;
    what the others say of it, and of being ended, came after. A rank that was killed left no record. `told`: they were
    told to stop."""
    first = min((at for _, at in deaths.values()), default=0)
    for index, (code, at) in sorted(deaths.items()):
        if at <= first + _KILLED_TOGETHER and not any((folder / f"{index}.json").exists() for folder in folders):
            if code == -signal.SIGKILL:
                return _killed(index)
            if -code in _CRASHES:
                return _crashed(index, signal.Signals(-code))
    records = sorted(
        (json.loads(path.read_text()) for folder in folders for path in folder.glob("*.json")),
        key=lambda one: one["time"],
    )
    if not records and told:
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
    """What a command raises whose ranks stopped since they were told to."""
    return Interrupted("stopped; the same command continues")


def _crashed(index: int, by: signal.Signals) -> Exception:
    message = (
        f"rank {index} crashed ({by.name}) in a library and raised no error; what it wrote stands above. "
        "The same command goes on from the last checkpoint"
    )
    return died(message, by.name, "killed")


def _killed(index: int) -> Exception:
    """A process killed from outside, alone among those of its job: what a machine does that is out of memory."""
    message = (
        f"rank {index} was killed from outside (signal 9), as a machine does that is out of memory; run the same "
        "command again with more memory, it goes on from its checkpoint"
    )
    return died(message, "SIGKILL", "host_oom")


def died(message: str, by: str, kind: FailureKind) -> Exception:
    """An EnvironmentFault that is recorded as a failure of this kind, which healing goes by."""
    error = EnvironmentFault(message)
    error.__cause__ = record.Recorded(record.entry(by, kind, error.exit_code, message))
    return error
