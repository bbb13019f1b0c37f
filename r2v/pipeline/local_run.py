"""A run of the pipeline in this process, as another terminal sees it.

    with recorded_run(root, "mrp", ["collect", "perturb"]) as run:     # outputs/.runs/mrp/
        with run.stage("collect"):
            ...
    local_runs(root)                                                   # what `r2v status` shows

    run.json       LocalRun: the stages, what each does now, what it took and cost; written by the run alone
    <stage>.log    the lines that the stage printed
    run.lease      held while the run lives

A run of a name that another process runs at this moment is not recorded, and says so.
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
from typing import Any, Literal

from r2v.data.schema import from_dict
from r2v.errors import EnvironmentFault, LeaseConflict
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.log import logger
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
    usd: float = 0.0
    """Paid or reserved for this pipeline while the stage ran."""
    what: str = ""
    """What it does now, how much of it is done, and since when."""
    done: int = 0
    total: int = 0
    since: float | None = None
    since_done: int = 0
    error: str = ""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds, until now where it has not ended."""
        return 0.0 if self.begun is None else (self.ended or time.time()) - self.begun

    @property
    def seconds_left(self) -> float | None:
        """Seconds until what it does now ends, at its pace so far; None if nothing tells it."""
        if self.state != "running" or self.since is None or self.done <= self.since_done:
            return None
        return (self.total - self.done) * (time.time() - self.since) / (self.done - self.since_done)


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A run of the pipeline on this machine."""

    name: str
    pid: int
    begun: float
    stages: tuple[LocalStage, ...]
    ended: float | None = None


class RecordedRun:
    """The run of this process, written down as it goes. folder: None if it is not recorded."""

    def __init__(self, root: Path, folder: Path | None, run: LocalRun) -> None:
        self._root, self._folder, self._run = root, folder, run
        self._written = 0.0

    def begin(self, jobs: Sequence[str]) -> None:
        """Write the file with these stages still to be made, beside those of an earlier run of this name."""
        before = None if self._folder is None else _read(self._folder / RUN_FILE)
        known = {} if before is None else {one.job: one for one in before.stages}
        ahead = (known.get(job, LocalStage(job=job)) for job in jobs)
        stages = known | {one.job: replace(one, state="waiting", what="", error="") for one in ahead}
        self._run = replace(self._run, stages=tuple(stages.values()))
        self.write()

    def change(self, job: str, **values: Any) -> None:
        """Change fields of a stage, and write the file unless a progress is younger than `_EVERY` seconds."""
        before = next(one for one in self._run.stages if one.job == job)
        after = replace(before, **values)
        self._run = replace(self._run, stages=tuple(after if one is before else one for one in self._run.stages))
        if after.state != before.state or after.what != before.what or time.monotonic() - self._written > _EVERY:
            self.write()

    def write(self, ended: float | None = None) -> None:
        """Write the file. A disk that refuses it does not stop the work that it tells of."""
        self._run = replace(self._run, ended=ended)
        self._written = time.monotonic()
        if self._folder is not None:
            with suppress(EnvironmentFault):
                write_json(self._folder / RUN_FILE, hashed(asdict(self._run)))

    @contextmanager
    def stage(self, job: str) -> Iterator[None]:
        """Record a stage: its lines, its progress, what it takes and costs, and the error that ends it."""
        if self._folder is None:
            yield
            return
        cpu, usd = cpu_seconds(), self._spent()
        self.change(job, state="running", begun=time.time(), ended=None, error="")
        with _logged(self._folder / f"{job}.log"), record.listened(partial(self._heard, job)):
            try:
                yield
            except BaseException as error:
                self.change(job, state="failed", error=record.describe(error)["message"], **self._taken(cpu, usd))
                raise
        self.change(job, state="done", **self._taken(cpu, usd))

    def _heard(self, job: str, what: str, done: int, total: int) -> None:
        stage = next(one for one in self._run.stages if one.job == job)
        since = {} if stage.what == what else {"since": time.time(), "since_done": done}
        self.change(job, what=what, done=done, total=total, **since)

    def _taken(self, cpu: float, usd: float) -> dict[str, float]:
        return {
            "ended": time.time(),
            "cpu_seconds": round(cpu_seconds() - cpu, 2),
            "usd": round(max(0.0, self._spent() - usd), 6),
        }

    def _spent(self) -> float:
        """USD that are spent or reserved by the journals of this pipeline."""
        ledger = ProjectLedger(self._root)
        return sum(ledger.book(entry).usd for entry in ledger.entries() if entry.purse == self._run.name)


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@contextmanager
def recorded_run(root: Path, name: str, jobs: Sequence[str]) -> Iterator[RecordedRun]:
    """Record the run of these stages, but for a job of Slurm, whose runner does that; within another run's block, that
    one. A second process that runs the same name is told that it is not recorded."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    folder = None if os.environ.get(record.FOLDER) else root / LOCAL_RUNS / name
    with ExitStack() as held:
        if folder is not None:
            try:
                held.enter_context(lease(folder / LEASE_FILE))
            except LeaseConflict:
                logger.info("  %s runs in another process too: `r2v status` shows that one", name)
                folder = None
        run = RecordedRun(root, folder, LocalRun(name=name, pid=os.getpid(), begun=time.time(), stages=()))
        run.begin(jobs)
        token = _current.set(run)
        try:
            yield run
        finally:
            _current.reset(token)
            run.write(ended=time.time())


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Write the lines of the log to a file too."""
    with path.open("w", encoding="utf-8", errors="replace") as file:
        handler = logging.StreamHandler(file)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def local_runs(root: Path) -> list[LocalRun]:
    """Return the runs that were recorded in this checkout, the newest last; a damaged file is named and left out."""
    found = (_read(path) for path in (root / LOCAL_RUNS).glob(f"*/{RUN_FILE}"))
    return sorted(filter(None, found), key=lambda run: run.begun)


def _read(path: Path) -> LocalRun | None:
    try:
        return from_dict(LocalRun, read_hashed(path))
    except FileNotFoundError:
        return None
    except (Damaged, ValueError) as error:
        logger.warning("%s; skipped", error)
        return None


def is_running(root: Path, run: LocalRun) -> bool:
    """True if the run's process lives."""
    return run.ended is None and holder(root / LOCAL_RUNS / run.name / LEASE_FILE) is not None


def log_of(root: Path, name: str, job: str) -> Path:
    """Return where the lines of a stage of a local run lie, or would."""
    return root / LOCAL_RUNS / name / f"{job}.log"
