"""Stand-in bodies of the stages: they cost nothing and fail on demand, and replace training and playing.

The rest is the real stage: command line, configuration, fingerprint, lease, inputs, manifest, error record, exit code.
Collect and its data are real; the bodies of the later stages write one small file, a function of their inputs and of
their number of steps alone, whatever interrupted them. `drill.json` of the current folder gives each job's behaviour
and is read when the job starts:

    steps, seconds     number of steps and length of each (default 2, 0.0); a checkpoint and a log line after each
    eat                MB of memory to touch at its first step
    cuda_oom_above     fails with CUDA's out-of-memory error while the batch_size of its phase is larger
    faulty_node        fails on this node with the ECC error of a GPU; abrupt: its runner dies too
    crash, usage       message of a plain error, or of a UsageError, at its first step
    deaf               ignores SIGTERM and SIGINT
    shards, kill_shard number of worker processes, which write one file each; index of the one that is killed
    slow_write         seconds to pause with half of its content written
    hold               waits until this file exists
    vanish             ends with 0, and its output is gone
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from r2v.errors import UsageError
from r2v.log import logger
from r2v.progress import Progress
from r2v.storage.artifact import Work
from r2v.storage.files import write_json, write_text

COMMANDS = {
    "run",
    "run_all",
    "perturb",
    "train_policy",
    "train_verifier",
    "generate_candidates",
    "generate_router_features",
    "train_router",
    "evaluate",
    "ablations",
    "train_hierarchical",
}


ECC = "CUDA error: uncorrectable ECC error encountered"


class OutOfMemoryError(RuntimeError):
    """An error with the name of torch's."""

    __module__ = "torch"


def install() -> None:
    """Give every stage but collect its stand-in body."""
    from r2v.pipeline.jobs import JOBS

    for job in JOBS[1:]:
        module, _, attribute = job.stage.partition(":")
        owner = importlib.import_module(module)
        setattr(owner, attribute, dataclasses.replace(getattr(owner, attribute), run=body(job.name)))


def body(name: str) -> Callable[[Any, Work], None]:
    """Return the stand-in body of a job's stage."""

    def run(cfg: Any, work: Work) -> None:
        logger.info("%s began at %.3f", name, time.time())
        behaviour = json.loads(Path("drill.json").read_text()).get(name, {})
        if behaviour.get("deaf"):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        phase = getattr(cfg, "phase", None)
        batch = getattr(phase, "batch_size", 1)
        value = play(name, behaviour, batch, work)
        put(work.folder, value, behaviour)
        if behaviour.get("vanish"):
            atexit.register(shutil.rmtree, work.folder)
        write_outputs(work.folder, name, value)
        if name == "evaluate":
            write_text(work.folder / "structured_results" / "main_table.csv", f"method,condition\n{value},noisy\n")
        work.summary.update(
            batch_size=batch, value=value, effective_batch=batch * getattr(phase, "gradient_accumulation_steps", 1)
        )
        logger.info("%s ended at %.3f", name, time.time())

    return run


def play(name: str, behaviour: dict[str, Any], batch_size: int, work: Work) -> str:
    """Run the steps that follow the checkpoint; return a hash over all steps."""
    checkpoint = work.folder / "checkpoint-latest" / "state.json"
    state = {"step": 0, "value": work.fingerprint}
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
        logger.info("%s goes on from step %d", name, state["step"])
    steps = behaviour.get("steps", 2)
    with Progress(name, steps, state["step"]) as bar:
        for step in range(state["step"], steps):
            misbehave(behaviour, batch_size)
            time.sleep(behaviour.get("seconds", 0.0))
            state = {"step": step + 1, "value": hashlib.sha256(f"{state['value']}{step}".encode()).hexdigest()}
            write_json(checkpoint, state)
            bar.advance(loss=1.0 / (step + 1))
            logger.info("%s step %d", name, step + 1)
    return str(state["value"])


def misbehave(behaviour: dict[str, Any], batch_size: int) -> None:
    """Fail as `drill.json` says."""
    while "hold" in behaviour and not Path(behaviour["hold"]).exists():
        time.sleep(0.05)
    if behaviour.get("faulty_node") == os.environ.get("SLURMD_NODENAME", ""):
        if behaviour.get("abrupt"):
            logger.error(ECC)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # simulates a kernel that has killed the runner
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(ECC)
    if "crash" in behaviour:
        raise ValueError(behaviour["crash"])
    if "usage" in behaviour:
        raise UsageError(behaviour["usage"])
    if batch_size > behaviour.get("cuda_oom_above", batch_size):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB")
    if "eat" in behaviour:
        eaten = bytearray(behaviour["eat"] << 20)
        for page in range(0, len(eaten), 4096):
            eaten[page] = 1
        time.sleep(2.5)  # Slurm samples memory once a second


def put(folder: Path, value: str, behaviour: dict[str, Any]) -> None:
    """Write the content, with `shards` by worker processes, each of which must write its own file."""
    count = behaviour.get("shards", 0)
    for shard in range(count):
        worker = multiprocessing.Process(target=write_shard, args=(folder, shard, shard == behaviour.get("kill_shard")))
        worker.start()
        worker.join()
    if lost := [shard for shard in range(count) if not (folder / f"shard-{shard}.txt").exists()]:
        raise MemoryError(f"{count - len(lost)} of {count} shards were written, {lost} not: a worker was killed")
    if "slow_write" in behaviour:
        with (folder / "value.txt").open("w") as file:
            file.write(value[:10])
            file.flush()
            logger.info("half written")
            time.sleep(behaviour["slow_write"])
    write_text(folder / "value.txt", value + "\n")


def write_outputs(folder: Path, name: str, value: str) -> None:
    """Write every output that the job's row promises, with the value in it."""
    from r2v.pipeline.jobs import job

    for output in job(name).outputs:
        path = folder / output
        write_text(path if path.suffix else path / "value.txt", value + "\n")


def write_shard(folder: Path, shard: int, killed: bool) -> None:
    """Write one worker's file; if `killed`, end by SIGKILL, as the kernel's OOM killer does."""
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)
    write_text(folder / f"shard-{shard}.txt", f"{shard}\n")
