"""Background runs: commands that outlive the terminal, each with a record and a log.

    logs/background/<name>_<time>/background.json     command, process and start time
    logs/background/<name>_<time>/nohup.log           output

A run leads its own session, so that closing the terminal does not end it. It is identified by process id, start time
and machine, so that a later process with the same id is never mistaken for it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from r2v.console import text_table
from r2v.constraints import shown
from r2v.errors import InputError, Interrupted, UsageError, nearest
from r2v.experiments.records import FORMER_EXPERIMENTS, chosen, new_folder, now, read_record
from r2v.experiments.schedule.launcher import left_code, start_process, stop_group
from r2v.storage.files import write_json
from r2v.storage.lease import Owner
from r2v.storage.paths import BACKGROUND, EXPERIMENTS

BACKGROUND_RECORD, NOHUP_LOG = "background.json", "nohup.log"
FORMER_BACKGROUND = "background_runs"
"""Folder of background runs in the first guide."""
_PATIENCE = 60.0
"""Seconds between SIGTERM and SIGKILL; an experiment's own runs have half of them."""
_STOPPED = (Interrupted.exit_code, 130, 143)
"""Return codes of a command stopped by a signal."""
_REMEDY = "end what it started by hand, and remove it"


@dataclass(frozen=True, kw_only=True)
class BackgroundRun:
    """One command in the background."""

    id: str
    """Name of its folder."""
    name: str
    command: tuple[str, ...]
    process: str
    """Leading process: host, machine, pid, start time (`r2v.storage.lease.Owner`)."""
    started_at: str
    spec: str | None = None
    """Specification of an experiment; None for other commands."""

    @property
    def folder(self) -> Path:
        """Folder of the record and the log."""
        return BACKGROUND / self.id

    @property
    def owner(self) -> Owner:
        """Leading process. Raise InputError if the record names none."""
        owner = Owner.of(self.process)
        if owner is None:
            raise InputError(f"{self.folder / BACKGROUND_RECORD} is damaged: it names no process; look at {NOHUP_LOG}")
        return owner

    @property
    def state(self) -> Literal["running", "completed", "stopped", "failed", "killed", "elsewhere"]:
        """State of the run. killed: no return code; elsewhere: on another machine, whose processes are not visible."""
        code = left_code(self.folder)
        if code is not None:
            return "completed" if code == 0 else "stopped" if code in _STOPPED else "failed"
        alive = self.owner.lives
        if alive is None and self.owner.host != Owner.here().host:
            return "elsewhere"
        return "running" if alive else "killed"


def launch(command: Sequence[str], *, name: str, spec: Path | None = None) -> BackgroundRun:
    """Start a command in the background and return at once. Raise EnvironmentFault if the disk refuses."""
    folder = new_folder(name, BACKGROUND)
    started = start_process(command, folder / NOHUP_LOG, {"PYTHONUNBUFFERED": "1"}, detached=True)
    launched = BackgroundRun(
        id=folder.name,
        name=name,
        command=tuple(command),
        process=started.owner.filename,
        started_at=now(),
        spec=None if spec is None else str(spec),
    )
    write_json(folder / BACKGROUND_RECORD, asdict(launched))
    started.go()
    assert started.process is not None
    started.process.returncode = 0  # silences subprocess's warning: this process will not wait for it
    return launched


def background_runs() -> list[BackgroundRun]:
    """Return all background runs, oldest first. Raise InputError for a damaged record."""
    return sorted(
        (_read(path) for path in BACKGROUND.glob(f"*/{BACKGROUND_RECORD}")), key=lambda run: (run.started_at, run.id)
    )


def named(word: str) -> BackgroundRun:
    """Return the run given by id, folder, experiment folder, or name (then the newest running one, or else the newest).
    Raise UsageError with the nearest id if there is no such run."""
    runs = background_runs()
    path = Path(word.rstrip("/"))
    for run in runs:
        if word.rstrip("/") == run.id or (path.name == run.id and path.parts[0] in ("logs", FORMER_BACKGROUND)):
            return run
        if run.folder.resolve() in (path.resolve(), *path.resolve().parents):
            return run
    same = [run for run in runs if run.name == word] or _of_experiment(path, runs)
    if not same:
        raise UsageError(f"{word}: no such run in the background; {nearest(word, [run.id for run in runs])}")
    return next((run for run in reversed(same) if run.state == "running"), same[-1])


def stop(run: BackgroundRun) -> bool:
    """Stop a run and all processes that it started; return False if it had ended. Raise InputError for a run on another
    machine."""
    if run.state == "elsewhere":
        raise InputError(f"{run.id} runs on {run.owner.host}; stop it there")
    return stop_group(run.owner, _PATIENCE)


def _of_experiment(path: Path, runs: Sequence[BackgroundRun]) -> list[BackgroundRun]:
    """Return the runs of the experiment in a folder."""
    if len(path.parts) < 2 and not path.name.rpartition("_")[0]:
        return []
    if path.parts[:1] == (FORMER_EXPERIMENTS,):
        path = EXPERIMENTS.joinpath(*path.parts[1:])
    try:
        folder = chosen(str(path))
    except InputError:
        return []
    name = read_record(folder).name
    return [run for run in runs if run.spec is not None and run.name == name]


def _read(path: Path) -> BackgroundRun:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        run = BackgroundRun(**{**values, "command": tuple(values["command"])})
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise InputError(f"{path} is damaged ({shown(str(error))}); {_REMEDY}") from None
    if run.id != path.parent.name or not isinstance(run.process, str):
        raise InputError(f"{path} is damaged: it is of {shown(str(run.id))}; {_REMEDY}")
    return run


def lines() -> list[str]:
    """Return a table of all background runs."""
    rows = [("id", "state", "pid", "started", "runs")]
    for run in background_runs():
        what = run.spec or shlex.join(run.command)
        rows.append((run.id, run.state, str(run.owner.pid), run.started_at[:19], what))
    return text_table(rows).splitlines() if len(rows) > 1 else ["nothing was started in the background"]
