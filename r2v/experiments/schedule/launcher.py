"""Launcher: processes that outlive their parent and leave their return code in a file.

A shell waits for one line before it starts the command. The caller sends it after recording the process, so that an
unrecorded process never begins. When the command ends, the shell writes its return code into the folder. A restarted
orchestrator reads the results of its runs there and waits for those still running instead of starting them twice.
Background runs (`r2v.experiments.schedule.background`) lead their own sessions, which survive a closed terminal, and
leave a return code when they are stopped.
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
"""Environment variable with a run's folder."""

_SCRIPT = """\
read -r go || exit 75
exec < /dev/null
"$@"
code=$?
echo $code > "$0/.return_code" && mv "$0/.return_code" "$0/return_code"
exit $code
"""
_DETACHED = "trap '' HUP\ntrap : TERM INT\n"
"""Makes the shell survive its terminal and the signals that stop its command."""
_SAMPLE = 0.5
"""Seconds between two samples of a run's memory."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """End of a run. `return_code` is None if unknown: its launcher was killed and was not a child of this process."""

    return_code: int | None
    peak_bytes: int | None = None
    cpu_seconds: float | None = None
    line: str = ""
    """Reason of a failure that is not in the run's output."""


class ActiveRun(Protocol):
    """A run that is prepared, running, or ended and not yet polled."""

    def go(self) -> None:
        """Begin the run; call it once the run is recorded."""

    def look(self) -> RunEnd | None:
        """Return the run's end, or None while it runs."""

    def stop(self, patience: float) -> None:
        """Terminate the run; kill it after `patience` seconds."""


@dataclass(kw_only=True)
class StartedRun:
    """A local process that is prepared, running, or ended and not yet polled."""

    owner: Owner
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    """None if another process started it."""
    _end: RunEnd | None = None
    _peak: int = 0
    _sampled: float = field(default_factory=time.monotonic)

    def go(self) -> None:
        """Start the command; call it once the process is recorded."""
        assert self.process is not None and self.process.stdin is not None
        with suppress(BrokenPipeError):  # the shell was killed meanwhile; `look` reports it
            self.process.stdin.write(b"go\n")
            self.process.stdin.close()

    def look(self) -> RunEnd | None:
        """Return the run's end, or None while it runs."""
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
        """Terminate the run and all processes that it started; kill them after `patience` seconds."""
        stop_group(self.owner, patience, self.look)


def words_of(spec: ExperimentSpec, run: RunRecord, flags: Sequence[str] = ()) -> list[str]:
    """Return the command line of a run: the specification's command with {config} and {run_dir} filled in, or R2V's
    own command for a point; the flags of a simulation follow unchanged."""
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
    """Start a shell that waits for `go`; output goes to `log`, the return code to the log's folder. The shell leads a
    process group, with `detached` a session. Raise EnvironmentFault if the disk refuses."""
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
    """Return a run started by another process, or None if it has ended. Raise LeaseConflict if it was started on
    another machine, whose processes are not visible, unless that machine is `lost`."""
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
    """Return the return code that a run's launcher wrote, or None."""
    try:
        return int((folder / RETURN_CODE).read_text())
    except (OSError, ValueError):
        return None


def end_leftovers(owner: Owner) -> None:
    """Kill the remaining processes of a group whose leader is gone; the kernel reuses no id of a living group."""
    if owner.lives is False and not Path(f"/proc/{owner.pid}").exists() and _members(owner.pid):
        _signal(owner.pid, signal.SIGKILL)


def stop_group(owner: Owner, patience: float, look: Callable[[], object] = lambda: None) -> bool:
    """Stop the process group that `owner` leads, and its session if it leads one: SIGTERM to the group, SIGKILL to all
    processes left after `patience` seconds. Return False if none was left, or its id belongs to another process now.
    `look` is called between polls to reap a child of this process."""
    if not _left(owner):
        return False
    _signal(owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and _left(owner):
        look()
        time.sleep(0.05)  # each poll reads all of /proc
    for pid in _left(owner):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return True


def _left(owner: Owner) -> list[int]:
    """Return the living processes of a leader's group and session; none if its id belongs to another process."""
    if not owner.lives and Path(f"/proc/{owner.pid}").exists():
        state = [fields for pid, fields in _processes() if pid == owner.pid]
        if state and state[0][19] != owner.started:
            return []
    return _members(owner.pid) or ([owner.pid] if owner.lives else [])


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _members(leader: int) -> list[int]:
    """Return the living processes of a leader's group or session."""
    return [
        pid for pid, fields in _processes() if str(leader) in (fields[2], fields[3]) and fields[0] not in ("Z", "X")
    ]


def _group_memory(group: int) -> int:
    """Return the resident bytes of a group's processes, shared pages counted for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(fields[21]) * page for _, fields in _processes() if int(fields[2]) == group)


def _processes() -> list[tuple[int, list[str]]]:
    """Return (pid, fields of /proc/<pid>/stat from the third on) of every process; none without /proc."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # ended meanwhile
            processes.append((int(path.parent.name), path.read_text().rpartition(")")[2].split()))
    return processes
