"""The runner: what a Slurm job executes, however it was submitted. It runs one stage as a child and records its end.

    exec python -m r2v.slurm.runner train_policy webarena noisy bc --overrides training.lr=1e-5      # sbatch script
    StageJob(...)() -> run(["train_policy", "--stage", "bc", "--config", ...], name=..., job=...)   # run_all

The time limit's warning (USR2) is passed on as SIGTERM; the stage checkpoints and ends with 75, and the job puts
itself back into the queue under its own id, as long as it gets further each time. When Slurm ends a job itself it
signals every process, with a SIGCONT ahead: that SIGTERM is not passed on again, since a second one means "at once".
A job that Slurm starts again (after a requeue, a preemption, a lost node) keeps its id and its folder of records; its
restart count tells the starts apart.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.errors import FailureKind, InputError, Interrupted, LeaseConflict, R2VError
from r2v.log import logger, setup
from r2v.signals import stop_signals
from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.configuration import require_configuration
from r2v.slurm.healing.classify import error_line, failure_kind, near_limit
from r2v.slurm.helper_array import HelperArray, helper_array
from r2v.slurm.job_environment import granted_gpus, granted_memory, oom_kills, restart_count
from r2v.slurm.script_args import expand
from r2v.slurm.verify_outputs import missing_output, places_of
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed
from r2v.storage.record import FOLDER, describe

SIGCONT_WINDOW = 5.0
"""Seconds within which a SIGTERM belongs to the SIGCONT before it: Slurm sends them a moment apart."""
LOOK_SECONDS = 60.0
"""Seconds between two looks at how far the stage is, and whether helpers are worth asking for."""
_LOOKS = 5
"""Looks at a configuration, a second apart, before it counts as damaged."""
LEASE_WAIT = 180.0
"""Seconds to wait for a lease: that of an earlier start of this job, killed on another node, is dead after 60."""
_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal to send to a process when its parent dies


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
    continued: float = -math.inf
    """When a SIGCONT came last, on the monotonic clock."""
    oom_kills: int = field(default_factory=oom_kills)
    """The kernel's OOM kills in this cgroup before the stage began."""
    helpers: HelperArray | None = None
    """The array that its header asks for, beside the job."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the sbatch scripts; returns the stage's exit code."""
    setup()
    try:
        words = expand(list(sys.argv[1:] if argv is None else argv))
        return run(words, name=places_of(words).name)
    except R2VError as error:
        logger.error("r2v: %s", " ".join(str(error).split()))
        return error.exit_code


def run(words: list[str], *, name: str, job: str | None = None, root: Path = Path()) -> int:
    """Run `r2v WORDS` in this Slurm job as part of the chain `name`; returns the exit code for Slurm.

    Records lie in the chain's folder under the Slurm job's id. Without Slurm nothing is recorded.
    """
    id_ = os.environ.get("SLURM_JOB_ID", "")
    folder = chains.record_folder(root, name, id_).resolve() if id_ else None
    job_start = JobStart(
        words=words, job=job or _job_of(words, root, name), id=id_, restart=restart_count(), folder=folder
    )
    if id_ and _done_before(root, name, job_start):
        logger.info("r2v job %s: %s was done before it was started again", id_, job_start.job)
        return 0
    _begin(job_start, root, name)
    job_start.helpers = helper_array(words, name=name, job=job_start.job, job_id=id_, root=root)
    damage = _configuration_damage(words, root, name)
    code, error = (damage.exit_code, describe(damage)) if damage else _run_child(job_start)
    exit_ = _exit_record(job_start, code, error, root)
    goes_on = exit_["rc"] == Interrupted.exit_code and _worth_going_on(job_start, root, name)
    if job_start.helpers is not None:
        job_start.helpers.end(int(exit_["rc"]), goes_on=goes_on)
    _write(job_start, "exit.json", exit_)  # before the requeue: Slurm may start this job again at once
    if goes_on and client.requeue(id_):
        logger.info("r2v job %s: back into the queue, to go on from its checkpoint", id_)
    elif exit_["rc"] and exit_["line"]:
        logger.info("r2v job %s: %s failed (%s): %s", id_ or "-", job_start.job, exit_["kind"], exit_["line"])
    return int(exit_["rc"])


def _job_of(words: Sequence[str], root: Path, name: str) -> str:
    """Which job of the chain a command is; its stage where the chain has none like it, or is not there."""
    chain = _chain(root, name)
    known = {} if chain is None else chain.jobs
    commands = {job: set(entry.command) - {"--force"} for job, entry in known.items()}
    return next((job for job, command in commands.items() if command <= set(words)), words[0])


def _chain(root: Path, name: str) -> chains.Chain | None:
    """The chain that a job belongs to. None where there is none; damage is a line, for it stops no job."""
    if name not in chains.names(root):
        return None
    try:
        return chains.read(root, name)
    except R2VError as error:
        logger.warning("r2v job: %s", error)
        return None


def _configuration_damage(words: Sequence[str], root: Path, name: str) -> InputError | None:
    """What is wrong with the chain's configuration, where a job reads it. `resume` replaces it and then the chain, so
    it is looked at again before that is believed."""
    damage = None
    for _ in range(_LOOKS if str(chains.folder(root, name) / "config.yaml") in words else 0):
        chain = _chain(root, name)
        if chain is None:
            return None
        try:
            require_configuration(root, chain)
            return None
        except InputError as error:
            damage = error
        time.sleep(1.0)
    return damage


def _done_before(root: Path, name: str, job_start: JobStart) -> bool:
    """Whether an earlier start of this job ended well (its node failed a moment later): a collection, say, is
    paid for and must not be made anew."""
    before = chains.record(root, name, job_start.id).exit
    return bool(job_start.restart and before and before.get("rc") == 0 and before.get("kind") is None)


def _begin(job_start: JobStart, root: Path, name: str) -> None:
    from r2v.data.manifest import git_commit

    commit = git_commit()
    logger.info(
        "r2v job %s: %s on %s%s: r2v %s",
        job_start.id or "-",
        job_start.job,
        socket.gethostname(),
        f", restart {job_start.restart}" if job_start.restart else "",
        " ".join(job_start.words),
    )
    if job_start.folder is None:
        return
    for stale in ("error.json", "exit.json"):
        (job_start.folder / stale).unlink(missing_ok=True)
    _write(
        job_start,
        "start.json",
        {
            "job": job_start.job,
            "command": job_start.words,
            "host": socket.gethostname(),
            "restart": job_start.restart,
            "at": chains.now(),
            "commit": commit,
            "gpus": granted_gpus(),
            "resources": {
                "mem_bytes": granted_memory(),
                "cpus": os.environ.get("SLURM_CPUS_ON_NODE"),
                "partition": os.environ.get("SLURM_JOB_PARTITION"),
                "nodes": os.environ.get("SLURM_JOB_NODELIST"),
            },
        },
    )
    chain = _chain(root, name)
    if chain is not None and (submitted := chain.commit) not in (None, commit):
        logger.warning(
            "r2v job %s: submitted with the code of commit %s, runs that of %s",
            job_start.id,
            str(submitted)[:12],
            str(commit)[:12],
        )


def _run_child(job_start: JobStart) -> tuple[int, dict[str, Any] | None]:
    """The stage's exit code (negative: the signal that killed it) and its own error record. Where another process
    makes the same artifact, it is tried again until that one is done or its lease is dead."""
    deadline = time.monotonic() + LEASE_WAIT
    while True:
        code = _watch(job_start)
        if code != LeaseConflict.exit_code or not job_start.id or job_start.warned or time.monotonic() > deadline:
            error = chains.read_object(job_start.folder / "error.json") if job_start.folder and code else None
            return code, error
        time.sleep(10)


def _watch(job_start: JobStart) -> int:
    """Start the stage and wait for its end, passing on the first request to stop."""
    # Signals are awaited, not handled: none can come between a look at the child and the wait for the next one.
    awaited = {signal.SIGCHLD, signal.SIGUSR2, signal.SIGCONT, *stop_signals()}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    environment = {**os.environ, **({FOLDER: str(job_start.folder)} if job_start.folder else {})}
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "r2v", *job_start.words], env=environment, preexec_fn=lambda: _prepare(before)
        )
        while (code := child.poll()) is None:
            received = signal.sigtimedwait(awaited, LOOK_SECONDS)
            if received is None and job_start.helpers is not None and job_start.folder is not None:
                job_start.helpers.look(job_start.folder)
            if received is not None and received.si_signo != signal.SIGCHLD:
                _pass_on(job_start, signal.Signals(received.si_signo), child)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(mask: set[int | signal.Signals]) -> None:
    """In the child, before it becomes the stage: USR2 stays blocked (`scancel --signal=USR2 --full` would kill it), and
    it is signalled to stop when the runner dies: the next start of the job would find it at work."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask | {signal.SIGUSR2})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _pass_on(job_start: JobStart, number: signal.Signals, child: subprocess.Popen[bytes]) -> None:
    """Ask the stage to stop, once, unless Slurm itself has signalled it. A SIGHUP is passed on as such: where a
    terminal closes the stage gets one of its own, and a second SIGHUP, unlike a second SIGTERM, changes nothing."""
    if number == signal.SIGCONT:
        job_start.continued = time.monotonic()
        return
    if number != signal.SIGUSR2 and job_start.id:
        just_now = time.monotonic() - job_start.continued < SIGCONT_WINDOW
        job_start.ended_by_slurm = just_now or signal.sigtimedwait({signal.SIGCONT}, 0.5) is not None
    if not job_start.warned and not job_start.ended_by_slurm:
        logger.info("r2v job %s: %s; asking the stage to checkpoint and stop", job_start.id or "-", number.name)
        child.send_signal(signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)
    job_start.warned = True


def _exit_record(job_start: JobStart, code: int, error: dict[str, Any] | None, root: Path) -> dict[str, Any]:
    """The content of `exit.json`: how the stage ended, and the exit code that Slurm is given."""
    kind: FailureKind | None = failure_kind(code, error)
    line = error_line(error) if error else ""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL) or "signal 9" in line
    if code == 0:
        missing = missing_output(job_start.words, root)
        kind, line, code = ("bug", f"ended with 0, and yet {missing}", 1) if missing else (None, "", 0)
    elif kind != "cuda_oom" and (oom_kills() > job_start.oom_kills or killed and near_limit(peak, granted_memory())):
        kind, line = "host_oom", f"killed at its memory limit: {peak >> 20} MB used by its largest process"
    elif killed:
        kind, line = "killed", line or "killed by signal 9, nothing says why"
    elif code < 0:
        line = line or f"killed by {signal.Signals(-code).name}"
    rc = Interrupted.exit_code if kind == Interrupted.kind else 128 - code if code < 0 else code
    return {
        "rc": rc,
        "signal": max(0, -code),
        "kind": kind,
        "line": line,
        "at": chains.now(),
        "restart": job_start.restart,
        "peak_rss_bytes": peak,
    }


def _worth_going_on(job_start: JobStart, root: Path, name: str) -> bool:
    """Whether an interrupted job should put itself back: not when Slurm is ending it anyway, not when this start
    got no further than those before, and not beyond the chain's GPU-hours."""
    if not job_start.id or job_start.ended_by_slurm:
        return False
    if not chains.progressed(chains.record(root, name, job_start.id), job_start.restart, []):
        logger.info("r2v job %s: no progress within its time; left to healing", job_start.id)
        return False
    from r2v.slurm.healing.gpu_hours import over_cap

    if over := over_cap(root, name):
        logger.info("r2v job %s: %s", job_start.id, over)
    return not over


def _write(job_start: JobStart, name: str, value: dict[str, Any]) -> None:
    if job_start.folder is None:
        return
    try:
        write_json(job_start.folder / name, hashed(value))
    except R2VError as error:
        logger.warning("r2v job %s: %s", job_start.id, error)


if __name__ == "__main__":
    sys.exit(main())
