"""Launcher: processes that outlive whoever started them and whose end is never lost.

    started = start_process(words_of(spec, run), run_dir / OUTPUT, environment)
    started.go()                                    # once it is written down
    while (end := started.look()) is None: ...

A shell waits for one line before it starts the command: whoever records the process gives the word afterwards, so that
a process which nobody has written down has not begun. When the command has ended the shell leaves its return code in
the folder. An orchestrator that was killed finds there, when it comes back, what its runs have come to, and waits for
those that still work instead of starting them twice. Runs in the background (`r2v.experiments.schedule.background`) are
sessions of their own, which a closed terminal does not reach, and leave their return code when they are asked to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from r2v.errors import LeaseConflict
from r2v.experiments.records import RETURN_CODE, RunRecord
from r2v.llm.providers.keys import allowed_words
from r2v.storage.files import writing
from r2v.storage.lease import Owner

if TYPE_CHECKING:
    from r2v.experiments.specification.spec import ExperimentSpec

RUN_DIR = "R2V_RUN_DIR"
"""The environment variable that tells a run its folder."""

_SCRIPT = """\
read -r go || exit 75
exec < /dev/null
"$@"
code=$?
echo $code > "$0/.return_code" && mv "$0/.return_code" "$0/return_code"
exit $code
"""
_DETACHED = "trap '' HUP\ntrap : TERM INT\n"
"""The shell outlives its terminal and the command that it is stopped with."""
_SAMPLE = 0.5
"""Seconds between two looks at the memory of a run."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended. `return_code` is None where nobody knows: its launcher was killed, and was no child of ours."""

    return_code: int | None
    peak_bytes: int | None = None
    cpu_seconds: float | None = None
    line: str = ""
    """Why it failed, where its output does not say."""


class ActiveRun(Protocol):
    """A run that is about to begin, works, or has ended without having been looked at."""

    def go(self) -> None:
        """Begin; it is written down by now."""

    def look(self) -> RunEnd | None:
        """How it ended; None while it works."""

    def stop(self, patience: float) -> None:
        """End it: asked first, killed after `patience` seconds."""


@dataclass(kw_only=True)
class StartedRun:
    """A run that works, or has ended without having been looked at."""

    owner: Owner
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    """None where another process started it."""
    _end: RunEnd | None = None
    _peak: int = 0
    _sampled: float = field(default_factory=time.monotonic)

    def go(self) -> None:
        """Give the word; whoever starts runs calls it once the process is written down."""
        assert self.process is not None and self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(b"go\n")
            self.process.stdin.close()

    def look(self) -> RunEnd | None:
        """How the run ended; None while it works."""
        if self._end is None:
            self._end = self._adopted_end() if self.process is None else self._own_end(self.process)
        return self._end

    def _adopted_end(self) -> RunEnd | None:
        if self.owner.lives:
            return None
        end_leftovers(self.owner)
        return RunEnd(return_code=left_code(self.folder))

    def _own_end(self, process: subprocess.Popen[bytes]) -> RunEnd | None:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() - self._sampled > _SAMPLE:
                self._peak, self._sampled = max(self._peak, _group_memory(self.owner.pid)), time.monotonic()
            return None
        process.returncode = os.waitstatus_to_exitcode(status)
        end_leftovers(self.owner)
        left = left_code(self.folder)
        return RunEnd(
            return_code=process.returncode if left is None else left,
            peak_bytes=max(self._peak, usage.ru_maxrss * 1024),
            cpu_seconds=round(usage.ru_utime + usage.ru_stime, 3),
        )

    def stop(self, patience: float) -> None:
        """End the run and all that it started: asked first, killed after `patience` seconds."""
        stop_group(self.owner, patience, self.look)


def words_of(spec: ExperimentSpec, run: RunRecord, flags: Sequence[str] = ()) -> list[str]:
    """What is started for a run: the specification's command with {config} and {run_dir} filled in, or R2V's own word
    for a point; a simulation's flags behind it, as they were typed."""
    if spec.command:
        filled = [word.replace("{config}", run.config_path).replace("{run_dir}", run.run_dir) for word in spec.command]
        return [*filled, *flags]
    own = [sys.executable, "-m", "r2v", "experiments"]
    files = [run.config_path, run.run_dir]
    if spec.mode == "simulation":
        return [*own, "simulate", *files, *flags]
    return [*own, "point", *files, str(spec.stage), *allowed_words()]


def start_process(
    words: Sequence[str], log: Path, environment: Mapping[str, str], *, detached: bool = False
) -> StartedRun:
    """Start a command that waits for `go`; its output goes to `log`, its return code beside it. It leads a process
    group of its own; detached: a session of its own. Raises EnvironmentFault where the disk refuses."""
    folder = log.parent
    with writing(log):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RETURN_CODE).unlink(missing_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["sh", "-c", (_DETACHED if detached else "") + _SCRIPT, str(folder.resolve()), *words],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=None if detached else 0,
                start_new_session=detached,
            )
    return StartedRun(owner=Owner.of_process(process.pid), folder=folder, process=process)


def adopt_run(process: str, folder: Path, *, lost: bool = False) -> StartedRun | None:
    """The run that another process started, while it works; None where it has ended. Raises LeaseConflict where it
    was started on another machine, whose processes cannot be seen, unless that one is known to be `lost`."""
    owner = Owner.of(process)
    if owner is None or left_code(folder) is not None:
        return None
    alive = owner.lives
    if alive is False:
        end_leftovers(owner)
    if alive is None and owner.host != Owner.here().host and not lost:
        raise LeaseConflict(
            f"{folder.name} was started by {owner}, which cannot be seen from here; resume there, or, where that "
            "machine is gone, with --lost"
        )
    return StartedRun(owner=owner, folder=folder) if alive else None


def left_code(folder: Path) -> int | None:
    """The return code that a run's launcher left; None where it left none."""
    try:
        return int((folder / RETURN_CODE).read_text())
    except (OSError, ValueError):
        return None


def end_leftovers(owner: Owner) -> None:
    """Kill what a process group still holds whose leader is gone. Its number is nobody else's while it lives."""
    if owner.lives is False and not Path(f"/proc/{owner.pid}").exists() and _members(owner.pid):
        _signal(owner.pid, signal.SIGKILL)


def stop_group(owner: Owner, patience: float, look: Callable[[], object] = lambda: None) -> bool:
    """End the process group that this process leads, and what its session holds, if it is a session's leader: SIGTERM
    to the group, SIGKILL to what is left after `patience` seconds. False where nothing of it was left, or where its
    number is another process's by now. `look` reaps a child of ours between two looks."""
    if not _left(owner):
        return False
    _signal(owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and _left(owner):
        look()
        time.sleep(0.05)
    for pid in _left(owner):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return True


def _left(owner: Owner) -> list[int]:
    """What lives of a leader's group and session; nothing where its number is another process's."""
    if not owner.lives and Path(f"/proc/{owner.pid}").exists():
        state = [fields for pid, fields in _processes() if pid == owner.pid]
        if state and state[0][19] != owner.started:
            return []
    found = _members(owner.pid)
    return found or ([owner.pid] if owner.lives else [])


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _members(leader: int) -> list[int]:
    """The living processes of a leader's group or session."""
    return [
        pid for pid, fields in _processes() if str(leader) in (fields[2], fields[3]) and fields[0] not in ("Z", "X")
    ]


def _group_memory(group: int) -> int:
    """Bytes of memory that the processes of a group hold now, pages that they share counted for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(fields[21]) * page for _, fields in _processes() if int(fields[2]) == group)


def _processes() -> list[tuple[int, list[str]]]:
    """(pid, fields of its stat from the third on) of every process; none where there is no /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            found.append((int(path.parent.name), path.read_text().rpartition(")")[2].split()))
    return found
