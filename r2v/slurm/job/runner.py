"""The runner: the program of every stage's Slurm job. It runs one stage in a fork and records its end.

    exec python -m r2v.slurm.job.runner train_policy webarena noisy bc --overrides training.lr=1e-5      # sbatch script
    exec python -m r2v.slurm.job.runner --of webarena_noisy/bc.1 train_policy --stage bc --config ...    # run_all

The time limit's warning (USR2) is passed on as SIGTERM; the stage checkpoints and exits with 75, and the job requeues
itself under its own id, as long as each start makes progress. A restarted job (after a requeue, a preemption, a lost
node) keeps its id and its folder of records; the restart count separates its starts.

Every stage waits for the imports at the top; modules that the runner needs later are loaded while the stage runs.
"""

from __future__ import annotations

import logging
import os
import pickle
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from r2v.errors import FailureKind, InputError, Interrupted, LeaseConflict, R2VError, UsageError
from r2v.llm.providers.keys import allowed_words
from r2v.log import logger, setup
from r2v.several_nodes import node_count
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import require_configuration
from r2v.slurm.job.job_environment import granted_gpus, granted_memory, oom_kills, restart_count
from r2v.slurm.job.stage_process import JobStart, StageProcess, wait_for
from r2v.storage.files import replacing, write_json
from r2v.storage.integrity import hashed
from r2v.storage.record import UNATTENDED, describe

_LOOKS = 5
"""Reads of a configuration, a second apart, before it counts as damaged: `resume` replaces it and then the chain."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of every job of a stage; returns the stage's exit code."""
    setup()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == [chains.OF]:
            name, _, job = words[1].rpartition("/")
            job, _, attempt = job.partition(".")
            return run(words[2:], name=name, job=job, attempt=int(attempt or 1))
        from r2v.slurm.job.command_line import places_of
        from r2v.slurm.job.script_args import expand

        words = expand(words)
        return run(words, name=places_of(words).name)
    except R2VError as error:
        logger.error(f"r2v: {' '.join(str(error).split())}")
        return error.exit_code


def run(words: list[str], *, name: str, job: str | None = None, attempt: int = 1, root: Path = Path()) -> int:
    """Run `r2v WORDS` in this Slurm job as part of the chain `name`; returns the exit code for Slurm.

    Records are written to the chain's folder under the Slurm job's id; without Slurm, none.
    """
    chain = _chain(root, name)
    if job is not None:
        words = with_allowed_keys(words, chain)
        os.environ[UNATTENDED] = "1"
    id_ = os.environ.get("SLURM_JOB_ID", "")
    folder = job_record.record_folder(root, name, id_).resolve() if id_ else None
    job_start = JobStart(words=words, job=job or _job_of(words, chain), id=id_, restart=restart_count(), folder=folder)
    if id_ and _done_before(root, name, job_start):
        logger.info("r2v job was done before this restart: job=%s stage=%s", id_, job_start.job)
        return 0
    _greet(job_start)
    try:
        _require_sound_configuration(words, root, name)
        if node_count() > 1:
            from r2v.slurm.job.command_line import require_allocation_used

            require_allocation_used(words)
    except (InputError, UsageError) as damage:
        _begin(job_start)
        return _end(job_start, root, name, damage.exit_code, describe(damage))
    if job is not None and id_ and (now := _chain(root, name)) is not None and id_ not in now.slurm_ids:
        from r2v.slurm.healing.reconcile import surplus

        if surplus(root, name, job_start.job, attempt, id_):
            logger.info("r2v job is a duplicate submission, exiting: job=%s stage=%s", id_, job_start.job)
            return LeaseConflict.exit_code
    if chain is not None and any(entry.is_shared for entry in chain.jobs.values()):
        from r2v.slurm.healing.shared_stages import publish_all

        publish_all(root, name)  # artifacts of other chains that the stage may read
    process = StageProcess(job_start)
    _begin(job_start)

    from r2v.slurm.healing import classify  # noqa: F401  # loaded now, since the next job waits for this one's exit
    from r2v.slurm.job.helper_array import helper_array
    from r2v.slurm.job.teacher_job import teacher_job

    if id_:
        _look_beside(root, name, job_start)
    job_start.teacher = teacher_job(words, root) if id_ else None
    if job_start.teacher is not None:
        job_start.teacher.look_beside()
    job_start.helpers = helper_array(words, name=name, job=job_start.job, job_id=id_, root=root)
    code, error = wait_for(process)
    return code if job_start.put_back else _end(job_start, root, name, code, error)


def with_allowed_keys(words: Sequence[str], chain: chains.Chain | None) -> list[str]:
    """Return a job's command line with the variables that its chain may send as keys. They are read at the start, so
    that variables added by `resume` hold for pending jobs too."""
    return [*words, *allowed_words(() if chain is None else chain.allow_env)]


def _look_beside(root: Path, name: str, job_start: JobStart) -> None:
    """Reconcile in a fork that is not awaited, so that a silent Slurm does not delay the runner's signals. The chain's
    lock keeps it apart from the reconciliation at the job's end."""
    from r2v.slurm.healing.reconcile import from_job
    from r2v.slurm.job.submitted_code import tell_differences

    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    try:
        tell_differences(job_start.id, _chain(root, name), job_start.words)
        from_job(root, name, job_start.id)
    except BaseException:  # a bug here is logged and must not end the job
        traceback.print_exc()
    _leave(0)


def _leave(code: int) -> NoReturn:
    """Exit at once: the next job waits while Python's own exit tears down all modules."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end(job_start: JobStart, root: Path, name: str, code: int, error: dict[str, Any] | None) -> int:
    """Record the stage's end, then requeue, publish or heal as it demands; returns the exit code for Slurm."""
    from r2v.slurm.client import client
    from r2v.slurm.healing.reconcile import from_job
    from r2v.slurm.healing.shared_stages import publish_for_waiters

    exit_ = _exit_record(job_start, code, error, root)
    goes_on = exit_["rc"] == Interrupted.exit_code and _worth_going_on(job_start, root, name)
    if job_start.helpers is not None:
        job_start.helpers.end(int(exit_["rc"]), goes_on=goes_on)
    _write(job_start, "exit.json", exit_)  # before the requeue: Slurm may start this job again at once
    if not goes_on:
        _write_result(job_start, root, name, exit_)
    if goes_on and client.requeue(job_start.id):
        logger.info("r2v job requeued, resuming from its checkpoint: job=%s", job_start.id)
    elif exit_["rc"] and exit_["line"]:
        logger.info(
            "r2v job failed: job=%s stage=%s kind=%s reason=%s",
            *(job_start.id or "-", job_start.job, exit_["kind"], exit_["line"]),
        )
    if job_start.id and not goes_on and not job_start.ended_by_slurm:
        if not exit_["rc"]:
            publish_for_waiters(root, name, job_start.job)
        from_job(root, name, job_start.id, failed=bool(exit_["rc"]))
    return int(exit_["rc"])


def _exit_record(job_start: JobStart, code: int, error: dict[str, Any] | None, root: Path) -> dict[str, Any]:
    """Return the content of `exit.json`: outcome by exit code, error record and peak memory, and the code for Slurm."""
    from r2v.slurm.healing.classify import error_line, failure_kind, near_limit
    from r2v.slurm.job.command_line import missing_output

    kind: FailureKind | None = failure_kind(code, error)
    line = error_line(error) if error else ""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL) or "signal 9" in line
    if code == 0:
        missing = missing_output(job_start.words, root)
        kind, line, code = ("bug", f"ended with 0, and yet {missing}", 1) if missing else (None, "", 0)
    elif job_start.stalled:
        kind, line = "stalled", job_start.stalled
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


def _job_of(words: Sequence[str], chain: chains.Chain | None) -> str:
    """Return the chain's job with this command, else the command's name."""
    entries = {} if chain is None else chain.jobs
    commands = {job: set(entry.command) - {"--force"} for job, entry in entries.items()}
    return next((job for job, command in commands.items() if command <= set(words)), words[0])


def _chain(root: Path, name: str) -> chains.Chain | None:
    """Return a job's chain; None if it is missing, or damaged, which is logged."""
    try:
        return chains.find(root, name)
    except R2VError as error:  # a stage runs without its chain's file
        logger.warning("r2v job cannot read its chain: chain=%s error=%s", name, error)
        return None


def _require_sound_configuration(words: Sequence[str], root: Path, name: str) -> None:
    """Raise InputError if the chain's configuration is damaged, and this job reads it, after `_LOOKS` reads."""
    for look in range(_LOOKS if str(chains.folder(root, name) / "config.yaml") in words else 0):
        if (chain := _chain(root, name)) is None:
            return
        try:
            return require_configuration(root, chain)
        except InputError:
            if look + 1 == _LOOKS:
                raise
        time.sleep(1.0)


def _done_before(root: Path, name: str, job_start: JobStart) -> bool:
    """True if an earlier start of this job succeeded before its node failed: a paid collection must not be repeated."""
    before = job_record.record(root, name, job_start.id).exit
    return bool(job_start.restart and before and before.get("rc") == 0 and before.get("kind") is None)


def _greet(job_start: JobStart) -> None:
    """Log the start, and remove the end that an earlier start of this job recorded."""
    logger.info(
        "r2v job started: job=%s stage=%s host=%s restart=%d command=%s",
        *(job_start.id or "-", job_start.job, socket.gethostname(), job_start.restart),
        " ".join(["r2v", *job_start.words]),
    )
    if job_start.folder is not None:
        for stale in ("error.json", "exit.json"):
            (job_start.folder / stale).unlink(missing_ok=True)


def _begin(job_start: JobStart) -> None:
    """Record the start, while the stage loads its modules."""
    if job_start.folder is None:
        return
    from r2v.storage.artifact_manifest import code_identity, git_commit, own_snapshot

    _write(
        job_start,
        "start.json",
        {
            "job": job_start.job,
            "command": job_start.words,
            "host": socket.gethostname(),
            "restart": job_start.restart,
            "at": chains.now(),
            "commit": git_commit(),
            "code": code_identity(),
            "snapshot": own_snapshot().get("id"),
            "gpus": granted_gpus(),
            "resources": {
                "mem_bytes": granted_memory(),
                "cpus": os.environ.get("SLURM_CPUS_ON_NODE"),
                "partition": os.environ.get("SLURM_JOB_PARTITION"),
                "nodes": os.environ.get("SLURM_JOB_NODELIST"),
            },
        },
    )


def _worth_going_on(job_start: JobStart, root: Path, name: str) -> bool:
    """True if an interrupted job should requeue itself: unless Slurm is ending it anyway, this start made no progress,
    or a cap on GPU-hours is reached."""
    if not job_start.id or job_start.ended_by_slurm:
        return False
    if not job_record.progressed(job_record.record(root, name, job_start.id), job_start.restart, []):
        logger.info("r2v job made no progress within its time, left to healing: job=%s", job_start.id)
        return False
    from r2v.slurm.healing.gpu_hours import over_cap

    try:
        over = over_cap(root, name)
    except R2VError as error:  # a damaged file must not keep the job's end from being recorded
        over = str(error)
    if over:
        logger.info("r2v job over its cap, left to healing: job=%s reason=%s", job_start.id, over)
    return not over


def _write(job_start: JobStart, name: str, value: dict[str, Any]) -> None:
    if job_start.folder is None:
        return
    try:
        write_json(job_start.folder / name, hashed(value))
    except R2VError as error:  # a full disk: the stage's exit code still tells Slurm
        logger.warning("r2v job could not write a record: job=%s file=%s error=%s", job_start.id, name, error)


def _write_result(job_start: JobStart, root: Path, name: str, exit_: dict[str, Any]) -> None:
    """Write the job's result where submitit's `SlurmJob.result` reads it, if submitit wrote the script."""
    folder = chains.folder(root, name) / "submitit" / job_start.id
    if not job_start.id or not folder.is_dir():
        return
    try:
        with replacing(folder / f"{job_start.id}_0_result.pkl") as file:
            pickle.dump(("error", exit_["line"]) if exit_["rc"] else ("success", exit_), file)
    except R2VError as error:
        logger.warning("r2v job could not write submitit's result: job=%s error=%s", job_start.id, error)


if __name__ == "__main__":
    _leave(main())
