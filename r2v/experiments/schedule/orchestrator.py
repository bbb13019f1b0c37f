"""Orchestrator: starts the runs of an experiment, one or several at a time, and records their ends.

One process writes `experiment.json`, under the experiment's lease. Killed at any moment and started again with
`resume`, it loses no run and repeats none: ended runs are read from their folders, running ones are waited for, and the
others begin (`r2v.experiments.schedule.launcher`). A point completed by any experiment of the project is reused. By
default one run works at a time. The grid's order, or early stopping, decides on the next run.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from r2v.config.execution import allocated_cpus
from r2v.constraints import shown
from r2v.errors import EnvironmentFault, R2VError, UsageError
from r2v.experiments.metrics import headline
from r2v.experiments.records import OUTPUT, ExperimentRecord, RunRecord, now, write_record
from r2v.experiments.schedule.asha import AshaSchedule
from r2v.experiments.schedule.launcher import RUN_DIR, ActiveRun, RunEnd, adopt_run, left_code, start_process, words_of
from r2v.experiments.schedule.opening import RunOptions, completed_elsewhere, folder_of, opened
from r2v.experiments.schedule.slurm_runs import SlurmLooks, require_accepted, submitted_run, text_of
from r2v.experiments.specification.asha_rule import levels_of
from r2v.experiments.specification.expansion import Point, expand, label_of
from r2v.experiments.specification.spec import ExperimentSpec, read_spec
from r2v.experiments.views import LEASE, summary
from r2v.log import logger
from r2v.storage.files import write_text
from r2v.storage.lease import lease
from r2v.storage.record import FOLDER
from r2v.trackers import TRACKER_GROUP

_PATIENCE = 30.0
"""Seconds between SIGTERM and SIGKILL of a run."""
_PAUSES = (0.01, 0.25)
"""Seconds between two polls of the runs: after a start, and the longest."""


def run_experiment(spec_path: Path, options: RunOptions, sleep: Callable[[float], None] = time.sleep) -> Path:
    """Run or resume an experiment; return the folder of its results. `sleep` waits between two polls.

    All points are checked before any runs. Raise UsageError or InputError for a bad specification, LeaseConflict if
    another process runs the experiment, EnvironmentFault at the end if runs failed.
    """
    spec = read_spec(spec_path)
    points = expand(spec)
    if options.flags and spec.mode != "simulation":
        raise UsageError(f"{options.flags[0]}: is for mode: simulation; {spec.name} is mode: {spec.mode}")
    if spec.asha is not None:
        levels_of(spec.asha, [point.text for point in points])
    if options.slurm is not None:
        require_accepted(spec)
    folder = folder_of(spec, options)
    with lease(folder / LEASE):
        record = opened(folder, spec, points, options)
        record = Orchestrator(folder, spec, points, options, record, sleep).run()
    logger.info("experiment ended: folder=%s runs=%s", folder, summary(record))
    if failed := [run for run in record.runs if run.status == "failed"]:
        listed = ", ".join(f"{run.run} (return code {run.return_code})" for run in failed[:5])
        raise EnvironmentFault(
            f"{len(failed)} of {len(record.runs)} runs failed: {listed}; {Path(failed[0].run_dir) / OUTPUT} says why; "
            "--resume runs them again"
        )
    return folder


class RunSchedule(Protocol):
    """Order of an experiment's runs."""

    def next(self, record: ExperimentRecord, untried: Sequence[RunRecord]) -> tuple[RunRecord, str] | None:
        """Return the next run and its configuration as YAML, or None if no run can start now. `untried`: the runs that
        this process has not started yet."""
        ...


class GridSchedule:
    """Schedule of every point once, in the order of the grid."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._texts = {point.identity: point.text for point in points}

    def next(self, record: ExperimentRecord, untried: Sequence[RunRecord]) -> tuple[RunRecord, str] | None:
        """Return the first pending or failed run."""
        for run in untried:
            if run.status in ("pending", "failed") and run.identity in self._texts:
                return run, self._texts[run.identity]
        return None


class Orchestrator:
    """Scheduler of one experiment's runs in this process."""

    def __init__(
        self,
        folder: Path,
        spec: ExperimentSpec,
        points: Sequence[Point],
        options: RunOptions,
        record: ExperimentRecord,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self.folder, self.spec, self.options, self.record = folder, spec, options, record
        self.schedule: RunSchedule = (
            GridSchedule(points) if spec.asha is None else AshaSchedule(folder, spec, spec.asha, points)
        )
        self._active: dict[str, ActiveRun] = {}
        self._looks = SlurmLooks(every=options.look_every)
        self._began: dict[str, float] = {}
        self._started = 0
        self._tried: set[str] = set()
        self._memory = FreeMemory.now() if options.slots == "auto" else FreeMemory(memory=0)
        self._gpus = GpuWatch(self._memory.gpus)
        self._elsewhere: Mapping[str, tuple[Path, RunRecord]] = {}

    def run(self) -> ExperimentRecord:
        """Start and collect runs until none is left or the limit is reached; return the record."""
        self._recover()
        self._elsewhere = {} if self.options.fresh or not self.spec.command else completed_elsewhere(self.folder)
        with self._stopping():
            pause = _PAUSES[0]
            while True:
                if self._fill():
                    pause = _PAUSES[0]
                if not self._active:
                    return self.record
                self._gpus.look(list(self._active))
                if self._collect():
                    pause = _PAUSES[0]
                    continue
                self._sleep(pause)
                pause = min(1.5 * pause, _PAUSES[1])

    def _recover(self) -> None:
        """Adopt the running runs of an earlier process, and record the ended ones."""
        for run in self.record.runs:
            if run.status != "running":
                continue
            folder = Path(run.run_dir)
            if run.chain is not None:
                logger.info("submitted run adopted: run=%s chain=%s", run.run, run.chain)
                self._began[run.run] = time.monotonic()
                self._active[run.run] = submitted_run(self.folder, self.spec, run, self._looks)
                self._tried.add(run.run)
                self._active[run.run].go()
                continue
            adopted = adopt_run(run.process or "", folder, lost=self.options.lost)
            if adopted is not None:
                logger.info("running run adopted: run=%s pid=%d", run.run, adopted.owner.pid)
                self._active[run.run], self._began[run.run] = adopted, time.monotonic()
                self._tried.add(run.run)
            else:
                self._ended(run, RunEnd(return_code=left_code(folder)))

    def _fill(self) -> bool:
        """Start runs in free slots; return True if any was started."""
        before = self._started
        while len(self._active) < self._slots():
            open_runs = [run for run in self.record.runs if run.run not in self._tried]
            following = self.schedule.next(self.record, open_runs)
            if following is None:
                break
            run, text = following
            if self._reuse(run, text):
                continue
            if self.options.limit is not None and self._started >= self.options.limit:
                break
            self._start(run, text)
        return self._started > before

    def _slots(self) -> int:
        if self.options.slurm is not None:
            return self.options.slurm
        if self.options.slots != "auto":
            return self.options.slots
        return slots_that_fit(self.record.runs, self._memory)

    def _reuse(self, run: RunRecord, text: str) -> bool:
        """Record the result of a point that another experiment has completed; return True if there is one."""
        completed = self._elsewhere.get(run.identity)
        if completed is None or run.rung is not None:  # on a rung a point is run only in part
            return False
        folder, other = completed
        write_text(Path(run.config_path), text)
        self._tried.add(run.run)
        self._put(
            replace(
                run,
                status="completed",
                run_dir=other.run_dir,
                started_at=other.started_at,
                completed_at=other.completed_at,
                return_code=other.return_code,
                reused_from=f"{folder.name}/{other.run}",
            )
        )
        logger.info("run reused: run=%s from=%s/%s", run.run, folder.name, other.run)
        return True

    def _start(self, run: RunRecord, text: str) -> None:
        folder = Path(run.run_dir)
        _set_aside(folder)
        run = replace(run, status="running", started_at=now(), completed_at=None, return_code=None, chain=None)
        active: ActiveRun
        if self.options.slurm is not None:
            write_text(Path(run.config_path), text_of(self.folder, self.spec, run, text))
            active = submitted_run(self.folder, self.spec, run, self._looks, self.options.flags)
            run = replace(run, chain=active.name)
        else:
            write_text(Path(run.config_path), text)
            words = words_of(self.spec, run, self.options.flags)
            environment = {TRACKER_GROUP: self.folder.name, **dict.fromkeys((FOLDER, RUN_DIR), str(folder.resolve()))}
            active = started = start_process(words, folder / OUTPUT, environment)
            run = replace(run, process=started.owner.filename)
        self._active[run.run], self._began[run.run] = active, time.monotonic()
        self._tried.add(run.run)
        self._started += 1
        self._put(run)
        try:
            active.go()  # after the record, so that a kill leaves no unrecorded run
        except R2VError:  # Slurm refused the job
            del self._active[run.run]
            self._put(replace(run, status="pending", started_at=None, chain=None))
            raise
        status = "running" if run.chain is None else "submitted"
        logger.info(
            "run started: run=%s status=%s values=%s", run.run, status, label_of(run.values, run.seed) or run.base
        )

    def _collect(self) -> bool:
        """Record the runs that have ended; return True if any has."""
        ended = [(name, end) for name, started in self._active.items() if (end := started.look()) is not None]
        for name, end in ended:
            del self._active[name]
            self._ended(self.record.run(name), end)
        return bool(ended)

    def _ended(self, run: RunRecord, end: RunEnd) -> None:
        if end.return_code is None:  # killed with its launcher: its result is unknown, so it is run again
            self._put(replace(run, status="pending", process=None, started_at=None, chain=None))
            self._tried.discard(run.run)
            return
        status: Literal["completed", "failed"] = "completed" if end.return_code == 0 else "failed"
        self._put(
            replace(
                run,
                status=status,
                completed_at=now(),
                return_code=end.return_code,
                process=None,
                peak_bytes=end.peak_bytes,
                gpu_bytes=self._gpus.taken(run.run),
                cpu_seconds=end.cpu_seconds,
            )
        )
        seconds = time.monotonic() - self._began.get(run.run, time.monotonic())
        if status == "completed":
            figures = headline(Path(run.run_dir), self.spec.metric)
            logger.info("run completed: run=%s seconds=%.1f figures=%s", run.run, seconds, figures)
        else:
            logger.info("run failed: run=%s seconds=%.1f error=%s", run.run, seconds, end.line or _why(run))

    def _put(self, run: RunRecord) -> None:
        self.record = self.record.with_run(run)
        write_record(self.folder, self.record)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop local runs if the block raises, and record them as pending; runs in Slurm's queue stay there."""
        try:
            yield
        except BaseException:  # a signal or an error ends this process, so no local run may outlive it
            for name, started in self._active.items():
                if self.record.run(name).chain is not None:
                    continue
                started.stop(_PATIENCE)
                end = started.look()
                code = None if end is None else end.return_code
                run = self.record.run(name)
                done = code == 0
                self._put(
                    replace(
                        run,
                        status="completed" if done else "pending",
                        completed_at=now() if done else None,
                        return_code=code if done else None,
                        process=None,
                    )
                )
            raise


def _set_aside(folder: Path) -> None:
    """Rename the folder of an earlier attempt to <name>.attempt<number>."""
    if not folder.exists():
        return
    for number in range(1, 10_000):
        aside = folder.with_name(f"{folder.name}.attempt{number}")
        if not aside.exists():
            folder.rename(aside)
            return


def _why(run: RunRecord) -> str:
    """Return the last output line of a failed run."""
    try:
        lines = (Path(run.run_dir) / OUTPUT).read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return shown(lines[-1]) if lines else "it has printed nothing"


USABLE = 0.9
"""Share of the free memory that runs may use."""
_QUERY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """Available bytes on this machine; `gpus`: on each of its GPUs."""

    memory: int
    gpus: tuple[int, ...] = ()

    @classmethod
    def now(cls) -> FreeMemory:
        """Return the memory available now."""
        return cls(memory=available_memory(), gpus=free_gpu_memory())


def slots_that_fit(runs: Sequence[RunRecord], free: FreeMemory, cpus: int | None = None) -> int:
    """Return the number of runs at once: one until an ended run gives a measurement, then as many as the largest peaks
    fit into the usable memory of the machine and of each GPU in use, at most one per CPU."""
    peaks = [run.peak_bytes for run in runs if run.peak_bytes]
    on_gpus = [run.gpu_bytes for run in runs if run.gpu_bytes]
    if not peaks or (free.gpus and not on_gpus):
        return 1
    counts = [int(USABLE * free.memory / max(peaks)), allocated_cpus() if cpus is None else cpus]
    for available, *used in zip(free.gpus, *on_gpus, strict=False):
        if max(used) > 0:
            counts.append(int(USABLE * available / max(used)))
    return max(1, min(counts))


class GpuWatch:
    """GPU memory of runs: free bytes before them minus the least free bytes while each ran alone.

    every: seconds between two samples.
    """

    def __init__(self, before: tuple[int, ...], *, every: float = 2.0) -> None:
        self._before, self._every, self._at = before, every, float("-inf")
        self._least: dict[str, tuple[int, ...]] = {}

    def look(self, working: Sequence[str]) -> None:
        """Sample the GPUs if exactly one run is working."""
        if not self._before or len(working) != 1 or time.monotonic() - self._at < self._every:
            return
        self._at, free = time.monotonic(), free_gpu_memory()
        if len(free) == len(self._before):
            least = self._least.get(working[0], self._before)
            self._least[working[0]] = tuple(map(min, least, free))

    def taken(self, run: str) -> list[int]:
        """Return the bytes a run used on each GPU; empty if it was never sampled alone."""
        least = self._least.get(run)
        return [] if least is None else [before - now for before, now in zip(self._before, least, strict=True)]


def available_memory() -> int:
    """Return the available bytes of host memory: of the machine, or of this process's cgroup if it has less."""
    limits = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # no cgroup, or "max": no limit
        folder = Path("/sys/fs/cgroup")
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        limits.append(int(limit) - int(used))
    return max(0, min(limits, default=0))


def free_gpu_memory() -> tuple[int, ...]:
    """Return the free bytes of each GPU as counted by nvidia-smi; empty without a GPU."""
    if shutil.which(_QUERY[0]) is None:
        return ()
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=30, check=True).stdout
        return tuple(int(line) << 20 for line in answer.split())  # MiB
    return ()
