"""Record of a pipeline run in this process, for `r2v status` in another terminal.

    with recorded_run(root, "mrp", ["collect", "perturb"]) as run:     # outputs/.runs/mrp/
        with run.stage("collect"):
            ...
    local_runs(root)                                                   # shown by `r2v status`

    run.json       LocalRun: progress, time and cost of each stage; written by the run alone
    <stage>.log    log lines of the stage
    run.lease      held while the run lives

A run whose name another process is running is not recorded, which is logged.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

from r2v.data.schema import from_dict
from r2v.errors import EnvironmentFault, LeaseConflict
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.log import PrintableFormatter, logger
from r2v.storage import record
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed, read_hashed
from r2v.storage.lease import holder, lease
from r2v.storage.paths import LOCAL_RUNS

RUN_FILE, LEASE_FILE = "run.json", "run.lease"
_EVERY = 2.0
"""Seconds between two writings of the progress."""
StageState = Literal["waiting", "running", "done", "up to date", "failed"]
_current: ContextVar[RecordedRun | None] = ContextVar("local_run", default=None)


@dataclass(frozen=True, kw_only=True)
class LocalStage:
    """One stage of a local run. Times are seconds of the epoch."""

    job: str
    state: StageState = "waiting"
    begun: float | None = None
    ended: float | None = None
    cpu_seconds: float = 0.0
    """Of this process and of its children that have ended."""
    peak_mib: int = 0
    """Most resident memory of this process while the stage ran."""
    own_peak: bool = True
    """False where the kernel does not let a peak begin anew, so that earlier stages count in it."""
    usd: float = 0.0
    """Paid or reserved for this pipeline while the stage ran."""
    what: str = ""
    """Current part of its work, of which `done` of `total` is done; `since_done` of it was done at the time `since`."""
    done: int = 0
    total: int = 0
    since: float | None = None
    since_done: int = 0
    error: str = ""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds, until now if it has not ended."""
        return 0.0 if self.begun is None else (self.ended or time.time()) - self.begun

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end of the current part at its pace so far; None if there is no pace yet."""
        return self.left_at(time.time())

    def left_at(self, now: float) -> float | None:
        """`seconds_left` at a time, in seconds of the epoch."""
        if self.state != "running" or self.since is None or self.done <= self.since_done:
            return None
        return (self.total - self.done) * (now - self.since) / (self.done - self.since_done)


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A run of the pipeline on this machine."""

    name: str
    pid: int
    begun: float
    stages: tuple[LocalStage, ...]
    ended: float | None = None
    error: str = ""
    """The error that ended it."""


class RecordedRun:
    """Writer of the record of this process's run. folder: None if the run is not recorded."""

    def __init__(self, root: Path, folder: Path | None, run: LocalRun) -> None:
        self._root, self._folder, self._run = root, folder, run
        self._written = 0.0

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._run.name

    def begin(self, jobs: Sequence[str]) -> None:
        """Write the file with these stages waiting, after those of an earlier run of this name."""
        before = None if self._folder is None else _read(self._folder / RUN_FILE)
        stages = {stage.job: stage for stage in (() if before is None else before.stages)}
        for stage in stages.values():
            if stage.state == "running":  # its run was killed
                stages[stage.job] = replace(stage, state="failed", error="killed")
        for job in jobs:
            stage = stages.get(job, LocalStage(job=job))
            stages[job] = replace(stage, state="waiting", what="", error="")
        self._run = replace(self._run, stages=tuple(stages.values()))
        self._write()

    def end(self, error: str = "") -> None:
        """Record the end of the run. error: the message of a failed one."""
        self._run = replace(self._run, ended=time.time(), error=error)
        self._write()

    def change(self, job: str, **values: Any) -> None:
        """Change fields of a stage, and write the file: progress alone at most every `_EVERY` seconds."""
        before = self._stage(job)
        after = replace(before, **values)
        stages = {stage.job: stage for stage in self._run.stages} | {job: after}
        self._run = replace(self._run, stages=tuple(stages.values()))
        if after.state != before.state or after.what != before.what or time.monotonic() - self._written > _EVERY:
            self._write()

    @contextmanager
    def stage(self, job: str) -> Iterator[None]:
        """Record a stage: its log, progress, time and cost, and the error that ends it."""
        if self._folder is None:
            yield
            return
        cpu, usd = cpu_seconds(), ProjectLedger(self._root).committed_by(self.name)
        self.change(job, state="running", begun=time.time(), ended=None, error="", own_peak=_reset_peak())
        with _logged(self._folder / f"{job}.log"), record.listened(partial(self._heard, job)):
            try:
                yield
            except BaseException as error:
                self.change(job, state="failed", error=record.describe(error)["message"], **self._taken(cpu, usd))
                raise
        self.change(job, state="done", **self._taken(cpu, usd))

    def _stage(self, job: str) -> LocalStage:
        return next((stage for stage in self._run.stages if stage.job == job), LocalStage(job=job))

    def _write(self) -> None:
        """Write the file; a disk error does not stop the run."""
        self._written = time.monotonic()
        if self._folder is not None:
            with suppress(EnvironmentFault):
                write_json(self._folder / RUN_FILE, hashed(asdict(self._run)))

    def _heard(self, job: str, what: str, done: int, total: int) -> None:
        since = {} if self._stage(job).what == what else {"since": time.time(), "since_done": done}
        self.change(job, what=what, done=done, total=total, **since)

    def _taken(self, cpu: float, usd: float) -> dict[str, Any]:
        return {
            "ended": time.time(),
            "cpu_seconds": round(cpu_seconds() - cpu, 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "usd": round(max(0.0, ProjectLedger(self._root).committed_by(self.name) - usd), 6),
        }


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _reset_peak() -> bool:
    """Let this process's peak of resident memory begin anew; False where the kernel does not."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


@contextmanager
def recorded_run(root: Path, name: str, jobs: Sequence[str]) -> Iterator[RecordedRun]:
    """Record the run of these stages; inside another run's block of the same name, yield that one. A Slurm job is not
    recorded here, for its runner does that. A run that cannot be recorded is logged and goes on."""
    outer = _current.get()
    if outer is not None and outer.name == name:
        yield outer
        return
    folder = None if os.environ.get(record.FOLDER) or outer is not None else root / LOCAL_RUNS / name
    held = ExitStack()
    if folder is not None:
        try:
            held.enter_context(lease(folder / LEASE_FILE))
        except LeaseConflict:
            logger.info("  run not recorded, another process runs it: name=%s; `r2v status` shows the other", name)
            folder = None
        except EnvironmentFault as error:
            logger.info("  run not recorded for `r2v status`: error=%s", error)
            folder = None
    run = RecordedRun(root, folder, LocalRun(name=name, pid=os.getpid(), begun=time.time(), stages=()))
    run.begin(jobs)
    token = _current.set(run)
    try:
        yield run
    except BaseException as error:
        run.end(record.describe(error)["message"])
        raise
    else:
        run.end()
    finally:
        _current.reset(token)
        with suppress(
            LeaseConflict, EnvironmentFault
        ):  # a lease lost while this process was suspended: the work is done
            held.close()


class _LogFile(logging.StreamHandler[TextIO]):
    """Log handler of a file that survives a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line: it is on the terminal too."""


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Copy log lines to a file, escaped as for a terminal."""
    try:
        file = path.open("w", encoding="utf-8", errors="replace")
    except OSError as error:
        logger.info("  stage log cannot be written: path=%s error=%s", path, error.strerror)
        yield
        return
    handler = _LogFile(file)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):  # a full disk fails again when the rest is flushed
            file.close()


def local_runs(root: Path) -> list[LocalRun]:
    """Return the runs recorded in this checkout, the newest last; a damaged file is logged and skipped."""
    runs = (_read(path) for path in (root / LOCAL_RUNS).glob(f"*/{RUN_FILE}"))
    return sorted(filter(None, runs), key=lambda run: run.begun)


def _read(path: Path) -> LocalRun | None:
    try:
        return from_dict(LocalRun, read_hashed(path))
    except FileNotFoundError:
        return None
    except (Damaged, ValueError) as error:
        logger.warning("record of a run skipped: error=%s", error)
        return None


def is_running(root: Path, run: LocalRun) -> bool:
    """True if the run's process lives."""
    return run.ended is None and holder(root / LOCAL_RUNS / run.name / LEASE_FILE) is not None


def log_of(root: Path, name: str, job: str) -> Path:
    """Return the path of the log of a stage of a local run."""
    return root / LOCAL_RUNS / name / f"{job}.log"
