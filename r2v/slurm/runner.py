"""What runs inside a Slurm job, whichever door it came by: one stage as a child, watched and recorded.

    exec python -m r2v.slurm.runner train_policy webarena noisy bc --overrides training.lr=1e-5      # sbatch script
    StageJob(...)() -> run(["train_policy", "--stage", "bc", "--config", ...], name=..., job=...)   # run_all

The time limit's warning (USR2) is passed on as SIGTERM; the stage checkpoints and ends with 75, and the job puts
itself back into the queue under its own id, as long as it gets further each time. When Slurm ends a job itself it
tells every process, with a SIGCONT ahead: that SIGTERM is not passed on again, since a second one means "at once".
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

from r2v.errors import Held, Interrupted, R2VError
from r2v.log import logger, setup
from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.healing.classify import Kind, error_line, near_limit, of_stage
from r2v.slurm.script_args import expand
from r2v.slurm.verify_outputs import places_of, unmade
from r2v.storage.files import write_json
from r2v.storage.record import FOLDER

WARNED = {signal.SIGCHLD, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGCONT}
TOGETHER = 5.0
"""Seconds within which a SIGTERM belongs to the SIGCONT before it: Slurm sends them a moment apart."""
_TELL_WHEN_PARENT_DIES = 1  # PR_SET_PDEATHSIG of prctl(2)
HELD_PATIENCE = 180.0
"""Seconds to wait for a lease: that of a life of this job killed on another node is dead after 60."""


@dataclass(kw_only=True)
class Life:
    """One life of a job: what it runs, where it writes about itself, and which signals it has had."""

    words: list[str]
    job: str
    id: str
    restart: int
    folder: Path | None
    warned: bool = False
    ended_by_slurm: bool = False
    continued: float = -math.inf
    """When a SIGCONT came last."""
    oom_kills: int = field(default_factory=lambda: _oom_kills())


def main(argv: Sequence[str] | None = None) -> int:
    """The door of the sbatch scripts; returns the stage's exit code."""
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
    life = Life(
        words=words, job=job or _job_of(words, root, name), id=id_, restart=chains.restart_count(), folder=folder
    )
    if id_ and _done_before(root, name, life):
        logger.info("r2v job %s: %s was done before it was started again", id_, life.job)
        return 0
    _begin(life, root, name)
    code, error = _run_child(life)
    exit_ = _outcome(life, code, error, root)
    again = exit_["rc"] == Interrupted.exit_code and _worth_going_on(life, root, name)
    _write(life, "exit.json", exit_)
    if again and client.requeue(id_):
        logger.info("r2v job %s: back into the queue, to go on from its checkpoint", id_)
    elif exit_["rc"] and exit_["line"]:
        logger.info("r2v job %s: %s failed (%s): %s", id_ or "-", life.job, exit_["kind"], exit_["line"])
    return int(exit_["rc"])


def _job_of(words: Sequence[str], root: Path, name: str) -> str:
    """Which job of the chain a command is; its stage where the chain has none like it, or is not there."""
    try:
        known = chains.read(root, name).jobs
    except R2VError:
        known = {}
    return next((key for key, one in known.items() if set(one.command) - {"--force"} <= set(words)), words[0])


def _done_before(root: Path, name: str, life: Life) -> bool:
    """Whether an earlier life of this job ended well (its node failed a moment later): a collection, say, is
    paid for and must not be made anew."""
    before = chains.record(root, name, life.id).exit
    return bool(life.restart and before and before.get("rc") == 0 and before.get("kind") is None)


def _begin(life: Life, root: Path, name: str) -> None:
    from r2v.data.manifest import git_commit

    commit = git_commit()
    logger.info(
        "r2v job %s: %s on %s%s: r2v %s",
        life.id or "-",
        life.job,
        socket.gethostname(),
        f", restart {life.restart}" if life.restart else "",
        " ".join(life.words),
    )
    if life.folder is None:
        return
    for left in ("error.json", "exit.json"):
        (life.folder / left).unlink(missing_ok=True)
    _write(
        life,
        "start.json",
        {
            "job": life.job,
            "command": life.words,
            "host": socket.gethostname(),
            "restart": life.restart,
            "at": chains.now(),
            "commit": commit,
            "gpus": _gpus(),
            "resources": {
                "mem_bytes": _memory_limit(),
                "cpus": os.environ.get("SLURM_CPUS_ON_NODE"),
                "partition": os.environ.get("SLURM_JOB_PARTITION"),
                "nodes": os.environ.get("SLURM_JOB_NODELIST"),
            },
        },
    )
    if name in chains.names(root) and (submitted := chains.read(root, name).commit) not in (None, commit):
        logger.warning(
            "r2v job %s: submitted with the code of commit %s, runs that of %s",
            life.id,
            str(submitted)[:12],
            str(commit)[:12],
        )


def _run_child(life: Life) -> tuple[int, dict[str, Any] | None]:
    """The stage's exit code (negative: the signal that killed it) and its own error record. Where another process
    makes the same artifact, it is tried again until that one is done or its lease is dead."""
    deadline = time.monotonic() + HELD_PATIENCE
    while True:
        code = _watch(life)
        if code != Held.exit_code or not life.id or life.warned or time.monotonic() > deadline:
            error = chains.read_object(life.folder / "error.json") if life.folder and code else None
            return code, error
        time.sleep(10)


def _watch(life: Life) -> int:
    """Start the stage and wait for its end, passing on the first request to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WARNED)
    environment = {**os.environ, **({FOLDER: str(life.folder)} if life.folder else {})}
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "r2v", *life.words], env=environment, preexec_fn=lambda: _prepare(before)
        )
        while (code := child.poll()) is None:
            told = signal.sigtimedwait(WARNED, 60.0)
            if told is not None and told.si_signo != signal.SIGCHLD:
                _pass_on(life, signal.Signals(told.si_signo), child)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(mask: set[int | signal.Signals]) -> None:
    """In the child, before it becomes the stage: USR2 stays blocked (`scancel --signal=USR2 --full` would kill it), and
    it is told to stop when the runner dies, whose place in the queue the next life takes."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask | {signal.SIGUSR2})
    ctypes.CDLL(None).prctl(_TELL_WHEN_PARENT_DIES, signal.SIGTERM)


def _pass_on(life: Life, number: signal.Signals, child: subprocess.Popen[bytes]) -> None:
    if number == signal.SIGCONT:
        life.continued = time.monotonic()
        return
    if number != signal.SIGUSR2 and life.id:
        just_now = time.monotonic() - life.continued < TOGETHER
        life.ended_by_slurm = just_now or signal.sigtimedwait({signal.SIGCONT}, 0.5) is not None
    if not life.warned and not life.ended_by_slurm:
        logger.info("r2v job %s: %s; asking the stage to checkpoint and stop", life.id or "-", number.name)
        child.send_signal(signal.SIGTERM)
    life.warned = True


def _outcome(life: Life, code: int, error: dict[str, Any] | None, root: Path) -> dict[str, Any]:
    """The exit record: what the stage's end means."""
    kind: Kind | None = of_stage(code, error)
    line = error_line(error) if error else ""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL) or "signal 9" in line
    if code == 0:
        missing = unmade(life.words, root)
        kind, line, code = ("code", f"ended with 0, and yet {missing}", 1) if missing else (None, "", 0)
    elif kind != "cuda_oom" and (_oom_kills() > life.oom_kills or killed and near_limit(peak, _memory_limit())):
        kind, line = "host_oom", f"killed at its memory limit: {peak >> 20} MB used by its largest process"
    elif killed:
        kind, line = "killed", line or "killed by signal 9, nothing says why"
    elif code < 0:
        line = line or f"killed by {signal.Signals(-code).name}"
    rc = Interrupted.exit_code if kind == "timeout" else 128 - code if code < 0 else code
    return {
        "rc": rc,
        "signal": max(0, -code),
        "kind": kind,
        "line": line,
        "at": chains.now(),
        "restart": life.restart,
        "peak_rss_bytes": peak,
    }


def _worth_going_on(life: Life, root: Path, name: str) -> bool:
    """Whether an interrupted job should put itself back: not when Slurm is ending it anyway, not when this life
    got no further than those before, and not beyond the chain's GPU-hours."""
    if not life.id or life.ended_by_slurm:
        return False
    if not chains.progressed(chains.record(root, name, life.id), life.restart, []):
        logger.info("r2v job %s: no progress within its time; left to healing", life.id)
        return False
    from r2v.slurm.healing.gpu_hours import over_cap

    if over := over_cap(root, name):
        logger.info("r2v job %s: %s", life.id, over)
    return not over


def _write(life: Life, name: str, value: dict[str, Any]) -> None:
    if life.folder is None:
        return
    try:
        write_json(life.folder / name, value)
    except R2VError as error:
        logger.warning("r2v job %s: %s", life.id, error)


def _gpus() -> int:
    if count := os.environ.get("SLURM_GPUS_ON_NODE"):
        return int(count)
    listed = os.environ.get("SLURM_JOB_GPUS") or os.environ.get("CUDA_VISIBLE_DEVICES") or ""
    return len([one for one in listed.split(",") if one])


def _memory_limit() -> int | None:
    """Bytes that Slurm grants this job on its node; None where it does not say."""
    if node := os.environ.get("SLURM_MEM_PER_NODE"):
        return int(node) << 20 or None
    cpus, each = os.environ.get("SLURM_CPUS_ON_NODE"), os.environ.get("SLURM_MEM_PER_CPU")
    return int(cpus) * int(each) << 20 if cpus and each else None


def _oom_kills() -> int:
    """Processes that the kernel killed for memory in our cgroup so far; 0 where it does not tell."""
    found = 0
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            base, name = ("", "memory.events") if controllers == "" else ("memory", "memory.oom_control")
            file = Path("/sys/fs/cgroup") / base / path.lstrip("/") / name
            try:
                words = file.read_text().split()
            except OSError:
                continue
            found += int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
    return found


if __name__ == "__main__":
    sys.exit(main())
