"""The stage's process: a fork of the runner, which waits for it and passes on the first request to stop.

One Python starts per job: the stage runs in a copy of the process that has loaded R2V. The runner loads few modules and
starts no thread before the fork, and its other modules while the stage runs.

When Slurm ends a job it signals every process, SIGCONT before SIGTERM: that SIGTERM is not passed on, since a second
one means "at once".

A watchdog ends a stage whose pace has stopped, by the stage's events alone. A job whose artifact another process is
making requeues itself under its own id, so that it waits without a GPU.
"""

from __future__ import annotations

import ctypes
import math
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from r2v.errors import EnvironmentFault, LeaseConflict, R2VError
from r2v.log import logger
from r2v.signals import stop_signals
from r2v.slurm.chain import job_record
from r2v.slurm.client.variables import SUBMITTED
from r2v.slurm.job.job_environment import oom_kills
from r2v.slurm.site.site_profile import project_profile
from r2v.storage.record import FOLDER, HELD_BY

if TYPE_CHECKING:
    from r2v.slurm.job.helper_array import HelperArray
    from r2v.slurm.job.teacher_job import TeacherJob

SIGCONT_WINDOW = 5.0
"""Seconds within which a SIGTERM belongs to the SIGCONT before it: Slurm sends them a moment apart."""
LOOK_SECONDS = 60.0
"""Seconds between checks of the stage's progress and of the need for helpers: often enough for both, cheap on disk."""
LEASE_WAIT = 180.0
"""Seconds to wait for a lease while holding a GPU: that of an earlier start, killed elsewhere, expires after 60."""
STALL_PATIENCE = 1800.0
"""Minimum seconds without an event before a stage counts as stalled: steps of minutes are common."""
TIMES_LONGEST = 10.0
"""Multiple of the longest step so far after which a stage counts as stalled."""
_STEPS = 3
"""Steps after which a stage has a pace."""
PAUSE = 600
"""Seconds between retries for a lease that is held outside of Slurm: its end cannot be a dependency."""
_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal to send to a process when its parent dies
_AWAITED = {signal.SIGCHLD, signal.SIGUSR2, signal.SIGCONT}


@dataclass(kw_only=True)
class JobStart:
    """One start of a Slurm job: its command, the folder of its records, and the signals received."""

    words: list[str]
    job: str
    id: str
    """Slurm's job id; "" without Slurm."""
    restart: int
    folder: Path | None
    """The folder of its records; None without Slurm."""
    warned: bool = False
    ended_by_slurm: bool = False
    put_back: bool = False
    """True if it was requeued because another process makes the artifact."""
    stalled: str = ""
    """The watchdog's reason for ending the stage; "" if it has not."""
    continued: float = -math.inf
    """The monotonic time of the last SIGCONT, in seconds."""
    oom_kills: int = field(default_factory=oom_kills)
    """The kernel's OOM kills in this cgroup before the stage began."""
    helpers: HelperArray | None = None
    """The helper array that its header requests."""
    teacher: TeacherJob | None = None
    """The job that serves its teacher; None if none does."""


class StageProcess:
    """The running stage of one start of a job. Signals are awaited, not handled, so that none is lost between a check
    of the stage and the next wait."""

    def __init__(self, job_start: JobStart) -> None:
        self.job_start = job_start
        self._awaited = {*_AWAITED, *stop_signals()}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        sys.stdout.flush()
        sys.stderr.flush()
        runner = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_stage(runner)

    def _become_stage(self, runner: int) -> NoReturn:
        """Run `python -m r2v WORDS` in the fork. USR2 stays blocked, since `scancel --signal=USR2 --full` would kill
        it. The kernel sends SIGTERM when the runner dies: the next start of the job must not find the stage running."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != runner:
            os._exit(1)
        if self.job_start.folder is not None:
            os.environ[FOLDER] = str(self.job_start.folder)
        os.environ.pop(SUBMITTED, None)
        sys.argv = ["r2v", *self.job_start.words]
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask | {signal.SIGUSR2})
        try:
            if launched := project_profile().stage_command(self.job_start.words, Path()):
                os.execvp(launched[0], launched)
            runpy.run_module("r2v", run_name="__main__", alter_sys=True)
        except SystemExit:
            raise
        except R2VError as error:  # of the site profile; the stage's command reports its own
            logger.error(f"r2v: {error}")
            raise SystemExit(error.exit_code) from None
        except BaseException:  # the fork must not run on into the runner's error handling
            traceback.print_exc()
            raise SystemExit(1) from None
        raise SystemExit(0)

    def wait(self) -> int:
        """Return its exit code; negative: the signal that killed it."""
        job_start = self.job_start
        while (code := self._code()) is None:
            received = signal.sigtimedwait(self._awaited, LOOK_SECONDS)
            if received is None and job_start.folder is not None:
                self._look(job_start.folder)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._pass_on(signal.Signals(received.si_signo))
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return code

    def _look(self, folder: Path) -> None:
        """Submit helpers if they are worth it, and end a stalled stage: SIGTERM first, SIGKILL at the next check."""
        job_start = self.job_start
        if job_start.helpers is not None:
            job_start.helpers.look(folder)
        if job_start.teacher is not None:
            job_start.teacher.look_beside()
        if job_start.stalled:
            os.kill(self.pid, signal.SIGKILL)
            return
        with suppress(OSError, ValueError, LookupError, TypeError):  # no record is worth the job
            record, now = job_record.record_at(folder), datetime.now(UTC)
            if not job_record.waiting(record, job_start.restart, now):
                job_start.stalled = stalled(record.events, job_start.restart, now) or ""
        if job_start.stalled:
            logger.warning("r2v job stalled, ending the stage: job=%s reason=%s", job_start.id, job_start.stalled)
            os.kill(self.pid, signal.SIGTERM)

    def _code(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _pass_on(self, number: signal.Signals) -> None:
        """Ask the stage to stop, once, unless Slurm itself has signalled it. A SIGHUP is passed on as such: a closing
        terminal signals the stage too, and a second SIGHUP, unlike a second SIGTERM, changes nothing."""
        job_start = self.job_start
        if number == signal.SIGCONT:
            job_start.continued = time.monotonic()
            return
        if number != signal.SIGUSR2 and job_start.id:
            just_now = time.monotonic() - job_start.continued < SIGCONT_WINDOW
            job_start.ended_by_slurm = just_now or signal.sigtimedwait({signal.SIGCONT}, 0.5) is not None
        if not job_start.warned and not job_start.ended_by_slurm:
            logger.info(
                "r2v job asks its stage to checkpoint and stop: job=%s signal=%s", job_start.id or "-", number.name
            )
            os.kill(self.pid, signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)
        job_start.warned = True


def stalled(events: Sequence[Mapping[str, Any]], restart: int, now: datetime) -> str | None:
    """Return the reason that a stage counts as stalled, in one line; None if it does not. Only the middle of a count is
    watched: loading before the first steps and saving after the last take unknown time.

    Otherwise a rank that hangs in a collective, or a dead disk, would hold its GPUs to the time limit. The measure is
    the stage's own longest step, and never below half an hour. A stage with a recorded wait for a provider is not
    stalled."""
    if not events:
        return None
    what, done, total = (events[-1].get(key) for key in ("what", "done", "total"))
    times, counts = list[datetime](), set[Any]()
    for event in events:
        if event.get("what") == what and event.get("restart", 0) == restart and event.get("done") not in counts:
            counts.add(event.get("done"))
            times.append(datetime.fromisoformat(str(event["at"])))
    if len(times) <= _STEPS or not done or done == total:
        return None
    longest = max((after - before).total_seconds() for before, after in zip(times, times[1:], strict=False))
    still = (now - times[-1]).total_seconds()
    if still < max(STALL_PATIENCE, TIMES_LONGEST * longest):
        return None
    return (
        f"{what} stands at {done} of {total} for {still / 60:.0f} minutes, its longest step took {longest:.0f} s; "
        "ended by its watchdog"
    )


def put_back(job: str, error: Mapping[str, Any] | None) -> bool:
    """Requeue a Slurm job because of a lease conflict; False if no other holder is known (this job's own earlier start
    may hold it for a minute), or the site does not requeue: then it waits in place.

    It waits for the end of the Slurm job that holds the lease, or `PAUSE` seconds for a process outside of Slurm, and
    then tries again. Chains with the same stage share it before they start (`r2v.slurm.healing.shared_stages`); this
    covers holders outside of chains: a script given to sbatch directly, a command on a login node."""
    from r2v.slurm.client import client  # imported here, so that a starting stage need not wait for it

    holder = (error or {}).get(HELD_BY)
    if holder is None or holder == job:
        return False
    # Slurm signals a requeued job before it kills it: block that, so that the update below is still sent.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT, *stop_signals()})
    dependency = f"afterany:{holder}" if holder else f"{PAUSE} s"
    reason = (error or {}).get("message", "")
    logger.info("r2v job requeued behind a lease: job=%s until=%s reason=%s", job, dependency, reason)
    if not client.requeue(job):
        return False
    try:
        behind = bool(holder) and client.update(job, dependency=dependency)
        if not behind:
            client.update(job, starttime=f"now+{PAUSE}")
    except EnvironmentFault as fault:
        logger.warning("r2v job starts again after Slurm's own pause: job=%s error=%s", job, fault)
    return True


def wait_for(process: StageProcess) -> tuple[int, dict[str, Any] | None]:
    """Return the stage's exit code (negative: the signal that killed it) and its error record. If another process makes
    the same artifact, the job is requeued and `put_back` set; if it cannot be, or its own earlier start holds the
    lease, the stage is retried here until the lease is released or expires."""
    job_start, deadline = process.job_start, time.monotonic() + LEASE_WAIT
    while True:
        code = process.wait()
        error = job_record.read_object(job_start.folder / "error.json") if job_start.folder and code else None
        if code != LeaseConflict.exit_code or not job_start.id or job_start.warned or time.monotonic() > deadline:
            return code, error
        if put_back(job_start.id, error):
            job_start.put_back = True
            return code, error
        time.sleep(10)  # an expired lease is taken over within seconds
        process = StageProcess(job_start)
