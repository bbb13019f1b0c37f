"""The stage's process: a fork of the runner, which waits for it, passes on the first request to stop and tells its end.

One Python starts per job: the stage goes on in a copy of the process that has loaded R2V already. What the runner loads
is kept small and free of threads, so that a copy can be made of it; what it needs beside the stage it loads meanwhile.

Slurm signals every process of a job that it ends itself, with a SIGCONT ahead: that SIGTERM is not passed on again,
since a second one means "at once".

A watchdog ends a stage whose own pace has stopped; it asks nothing but the stage's events. A job whose artifact
somebody else is making goes back into the queue under its own id, so that it waits there without a GPU.
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
"""Seconds between two looks at how far the stage is, and whether helpers are worth asking for."""
LEASE_WAIT = 180.0
"""Seconds to wait for a lease with a GPU in hand: that of an earlier start of this job, killed on another node, is dead
after 60."""
STALL_PATIENCE = 1800.0
"""Seconds without an event that no stage is ended for."""
TIMES_LONGEST = 10.0
"""How many times its longest step so far a step may take."""
_STEPS = 3
"""Steps that a stage must have made before it has a pace."""
PAUSE = 600
"""Seconds from one look at a lease that is held outside of Slurm to the next."""
_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal to send to a process when its parent dies
_AWAITED = {signal.SIGCHLD, signal.SIGUSR2, signal.SIGCONT}


@dataclass(kw_only=True)
class JobStart:
    """One start of a Slurm job: what it runs, where it writes its records, and which signals it has had."""

    words: list[str]
    job: str
    id: str
    """Slurm's; "" without Slurm."""
    restart: int
    folder: Path | None
    """Of its records; None without Slurm."""
    warned: bool = False
    ended_by_slurm: bool = False
    put_back: bool = False
    """True if it waits in the queue again for what another process makes."""
    stalled: str = ""
    """Why its watchdog has ended the stage."""
    continued: float = -math.inf
    """When a SIGCONT came last, on the monotonic clock."""
    oom_kills: int = field(default_factory=oom_kills)
    """The kernel's OOM kills in this cgroup before the stage began."""
    helpers: HelperArray | None = None
    """The array that its header asks for, beside the job."""
    teacher: TeacherJob | None = None
    """The job that serves its teacher, where one does."""


class StageProcess:
    """The stage of one start of a job, at work. Its signals are awaited, not handled: none can come between a look at
    the stage and the wait for the next one."""

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
        """In the fork: be `python -m r2v WORDS`. USR2 stays blocked (`scancel --signal=USR2 --full` would kill it), and
        it is signalled to stop when the runner dies: the next start of the job would find it at work."""
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
        except R2VError as error:  # the site profile's: the stage's own are told by its command
            logger.error("r2v: %s", error)
            raise SystemExit(error.exit_code) from None
        except BaseException:  # nothing of the stage's may reach what the runner does with its own errors
            traceback.print_exc()
            raise SystemExit(1) from None
        raise SystemExit(0)

    def wait(self) -> int:
        """Its exit code, negative: the signal that killed it."""
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
        """Ask for helpers where they are worth it, and end a stage that hangs: first as its time limit would."""
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
            logger.warning("r2v job %s: %s", job_start.id, job_start.stalled)
            os.kill(self.pid, signal.SIGTERM)

    def _code(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _pass_on(self, number: signal.Signals) -> None:
        """Ask the stage to stop, once, unless Slurm itself has signalled it. A SIGHUP is passed on as such: where a
        terminal closes the stage gets one of its own, and a second SIGHUP, unlike a second SIGTERM, changes nothing."""
        job_start = self.job_start
        if number == signal.SIGCONT:
            job_start.continued = time.monotonic()
            return
        if number != signal.SIGUSR2 and job_start.id:
            just_now = time.monotonic() - job_start.continued < SIGCONT_WINDOW
            job_start.ended_by_slurm = just_now or signal.sigtimedwait({signal.SIGCONT}, 0.5) is not None
        if not job_start.warned and not job_start.ended_by_slurm:
            logger.info("r2v job %s: %s; asking the stage to checkpoint and stop", job_start.id or "-", number.name)
            os.kill(self.pid, signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)
        job_start.warned = True


def stalled(events: Sequence[Mapping[str, Any]], restart: int, now: datetime) -> str | None:
    """Why a stage is taken to hang, in one line; None where it is not. Only the middle of what it counts is watched:
    before its first steps and after its last it loads and saves for as long as that takes.

    A rank that hangs in a collective, or a disk that answers no more, holds its GPUs to the time limit otherwise. What
    a stage does takes as long as it takes: the measure is its own longest step so far, and nothing below half an hour
    counts. Who waits for a provider, and has recorded until when, does not hang."""
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
    """Put a Slurm job back into the queue because of a lease conflict; False where nobody else is known to hold the
    lease (this job's own earlier start may, for a minute), or the site puts nothing back: then it waits in place.

    It waits in the queue for the end of the Slurm job that holds the lease, or for a while where a process outside of
    Slurm does, and then looks again. Chains that make the same thing wait for each other before they start
    (`r2v.slurm.healing.shared_stages`); this is for whoever is in no chain: a script given to sbatch by hand, a
    command on a login node."""
    from r2v.slurm.client import client  # a look at Slurm, which no stage that starts has to wait for

    holder = (error or {}).get(HELD_BY)
    if holder is None or holder == job:
        return False
    # Slurm ends a job that it has put back; what it is told next it hears before it kills who asks.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT, *stop_signals()})
    logger.info("r2v job %s: %s", job, (error or {}).get("message", ""))
    logger.info("r2v job %s: back into the queue %s", job, f"behind job {holder}" if holder else f"for {PAUSE} s")
    if not client.requeue(job):
        return False
    try:
        behind = bool(holder) and client.update(job, dependency=f"afterany:{holder}")
        if not behind:
            client.update(job, starttime=f"now+{PAUSE}")
    except EnvironmentFault as told:
        logger.warning("r2v job %s: it starts again after Slurm's own pause: %s", job, told)
    return True


def wait_for(process: StageProcess) -> tuple[int, dict[str, Any] | None]:
    """The stage's exit code (negative: the signal that killed it) and its own error record. Where another process
    makes the same artifact the job goes back into the queue, and `put_back` is set; where that cannot be, or is its own
    earlier start's, it is tried again here until that one is done or its lease is dead."""
    job_start, deadline = process.job_start, time.monotonic() + LEASE_WAIT
    while True:
        code = process.wait()
        error = job_record.read_object(job_start.folder / "error.json") if job_start.folder and code else None
        if code != LeaseConflict.exit_code or not job_start.id or job_start.warned or time.monotonic() > deadline:
            return code, error
        if put_back(job_start.id, error):
            job_start.put_back = True
            return code, error
        time.sleep(10)
        process = StageProcess(job_start)
