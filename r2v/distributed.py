"""Distributed training: one process (rank) per GPU; starting the ranks, stopping them together.

    launch(2, "-m", "r2v.stages.train_policy", folder)      # the command itself stays a plain process

Torch's elastic agent (what torchrun is made of) starts the ranks, gives them their address and ends all of them
when one dies. What this adds: every rank leaves a record of its error, so the command fails as the rank that
failed first did; a request to stop reaches all ranks, which agree on the update after which they do; and no rank
outlives the command, whose lease it works under.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from r2v.errors import BY_EXIT_CODE, EnvironmentFault, FailureKind, Interrupted, UsageError
from r2v.log import logger, setup
from r2v.signals import stop_signals
from r2v.storage import record
from r2v.storage.files import write_json

_LAUNCH = "R2V_LAUNCH"
"""Names, to a rank, the folder that its launch collects errors in."""
_STOP = "stop"
"""File in that folder which says that ranks that have yet to begin need not."""
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_KILLED_TOGETHER = 5
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def rank() -> int:
    """Which of the ranks this process is; 0 in a plain process."""
    return int(os.environ["RANK"]) if _LAUNCH in os.environ else 0


def ranks() -> int:
    """How many ranks work together here; 1 in a plain process."""
    return int(os.environ["WORLD_SIZE"]) if _LAUNCH in os.environ else 1


def own_device(device: str) -> str:
    """The device of this rank, where `auto` or `cuda` means one GPU each."""
    if _LAUNCH in os.environ and device in ("auto", "cuda") and _visible_gpus():
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return device


def ranks_for(asked: int | None, device: str) -> int:
    """How many ranks a training takes: those asked for, or one per visible GPU, or one. Raises UsageError where
    more are asked for than there are GPUs to give one each."""
    gpus = _visible_gpus() if device in ("auto", "cuda") else int(device != "cpu")
    if asked is None:
        return max(1, gpus)
    if asked > 1 and device != "cpu" and asked > gpus:
        raise UsageError(
            f"training.ranks={asked}: policy.device={device} gives {gpus} GPUs; ask for no more, leave "
            "training.ranks out, or set policy.device=cpu"
        )
    return asked


def crowded(device: str) -> bool:
    """Whether a plain process would see several GPUs: transformers spreads it over all of them (DataParallel),
    which multiplies the batch. A rank sees one."""
    return device != "cpu" and _visible_gpus() > 1


def require_deepspeed(what: str, device: str, instead: str = "training.zero=0") -> None:
    """Raises UsageError where sharded training is asked for and cannot be had; `instead` names what can."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UsageError(f"{what}: deepspeed is not installed; pip install 'r2v[gpu]', or set {instead}")
    if device != "cpu" and not _visible_gpus():
        raise UsageError(f"{what}: no GPU is visible here; set {instead}, or policy.device=cpu to try it slowly")


def cut(batch_size: int, accumulation: int, count: int) -> tuple[int, int]:
    """(rows per micro-batch, micro-batches per update) of each of `count` ranks, for the same rows per update in
    all and micro-batches no larger than `batch_size`. Raises UsageError where ranks cannot share alike.

    >>> cut(8, 4, 2), cut(16, 1, 2)
    ((8, 2), (8, 1))
    """
    whole = batch_size * accumulation
    if whole % count:
        raise UsageError(
            f"batch_size={batch_size} x gradient_accumulation_steps={accumulation}: {count} ranks cannot "
            f"share {whole} rows an update; make the product a multiple of {count}, or set training.ranks"
        )
    share = whole // count
    micro = max(size for size in range(1, min(batch_size, share) + 1) if share % size == 0)
    return micro, share // micro


def _visible_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def launch(count: int, *command: str) -> None:
    """Run `python *command` as `count` ranks on this machine, until all are done. Raises what the rank that
    failed first raised (one of our errors as itself, any other as Recorded), Interrupted when told to stop."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _make_room()
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="r2v-ranks-") as name, _launching(Path(name)) as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            max_restarts=0,
            run_id=folder.name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            signals_to_handle="SIGQUIT",
            logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        )
        cause: Exception | None = None
        try:
            elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as failed:
            cause = _cause(folder, {index: (one.exitcode, one.timestamp) for index, one in failed.failures.items()})
        if cause is None and (folder / _STOP).exists():
            cause = _stopped()
    if cause is not None:
        raise cause


@contextmanager
def _launching(folder: Path) -> Iterator[Path]:
    """Tell ranks where their launch is, and that they are to stop when a signal comes; they leave when they are ready
    to, and torch's agent waits for none for long once another has left. A second signal, but SIGHUP, interrupts."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        if (folder / _STOP).exists():
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        (folder / _STOP).touch()
        for path in folder.glob("pid-*"):
            with suppress(ProcessLookupError):
                os.kill(int(path.name.removeprefix("pid-")), signal.SIGTERM)

    # SIGQUIT too: torch's agent installs a handler of its own for it.
    before = {number: signal.getsignal(number) for number in (*stop_signals(), signal.SIGQUIT)}
    for number in stop_signals():
        signal.signal(number, request_stop)
    os.environ[_LAUNCH] = str(folder)
    try:
        yield folder
    finally:
        del os.environ[_LAUNCH]
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_room() -> None:
    """Give back the GPU memory of what this process did before: the ranks need it."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _cause(folder: Path, deaths: Mapping[int, tuple[int, int]]) -> Exception:
    """What to raise for ranks that ended badly: `deaths` are exit codes and times. What failed first is the cause;
    what the others say of it, and of being ended, came after. A rank that was killed left no record."""
    first = min((at for _, at in deaths.values()), default=0)
    for index, (code, at) in sorted(deaths.items()):
        if at <= first + _KILLED_TOGETHER and not (folder / f"{index}.json").exists():
            if code == -signal.SIGKILL:
                return _killed(index)
            if -code in _CRASHES:
                return _crashed(index, signal.Signals(-code))
    records = sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=lambda one: one["time"])
    if not records and (folder / _STOP).exists():
        return _stopped()
    if not records:
        return EnvironmentFault(f"ranks ended with {[code for code, _ in deaths.values()]} and left no record of why")
    first_error = records[0]["error"]
    recorded = record.Recorded(first_error)
    recorded.add_note(records[0]["trace"])
    ours = BY_EXIT_CODE.get(first_error["exit_code"])
    if ours is None:
        return recorded
    error = ours(first_error["message"])
    error.__cause__ = recorded
    return error


def _stopped() -> Exception:
    return Interrupted("stopped; the same command continues")


def _crashed(index: int, by: signal.Signals) -> Exception:
    message = (
        f"rank {index} crashed ({by.name}) in a library and raised no error; what it wrote stands above. "
        "The same command goes on from the last checkpoint"
    )
    return _died(message, by.name, "killed")


def _killed(index: int) -> Exception:
    """A process killed from outside, alone among those of its job: what a machine does that is out of memory."""
    message = (
        f"rank {index} was killed from outside (signal 9), as a machine does that is out of memory; run the same "
        "command again with more memory, it goes on from its checkpoint"
    )
    return _died(message, "SIGKILL", "host_oom")


def _died(message: str, by: str, kind: FailureKind) -> Exception:
    """An EnvironmentFault that is recorded as a failure of this kind, which healing goes by."""
    error = EnvironmentFault(message)
    error.__cause__ = record.Recorded(record.entry(by, kind, error.exit_code, message))
    return error


def run_rank(act: Callable[[], None]) -> int:
    """Do `act` as one of the ranks of a launch; the process's exit code. Only rank 0 speaks and keeps records."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal signals the launch too, which tells the ranks
    folder = Path(os.environ[_LAUNCH])
    (folder / f"pid-{os.getpid()}").touch()
    setup()
    if rank():
        logger.disabled = True
        warnings.simplefilter("ignore")
        os.environ.pop(record.FOLDER, None)
    try:
        if (folder / _STOP).exists():
            raise KeyboardInterrupt
        act()
    except BaseException as error:
        for number in (signal.SIGTERM, signal.SIGINT):  # the agent's, which ends who is left, may come on top
            signal.signal(number, signal.SIG_IGN)
        described = record.describe(error)
        trace = traceback.format_exc()
        write_json(folder / f"{rank()}.json", {"error": described, "time": time.time(), "trace": trace})
        os._exit(described["exit_code"])  # the others may hang in a collective, which an orderly exit would wait for
    _leave()
    return 0


def _leave() -> None:
    """End, well, and without tearing a group down: gloo's threads abort a process in about one of ten orderly exits on
    a busy machine ("terminate called without an active exception")."""
    import torch.distributed as group

    if not group.is_initialized():
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Within the block a first signal to stop is noted; what is yielded tells whether one came, to every rank alike:
    all must ask as often. A second one interrupts at once. Off the main thread signals are left alone."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        # A scheduler, the launch and its agent may each signal a rank; kernel and shell may each send a SIGHUP.
        if received and _LAUNCH not in os.environ and number != signal.SIGHUP:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: _any_rank(bool(received))
        return
    before = {number: signal.signal(number, note) for number in stop_signals()}
    try:
        yield lambda: _any_rank(bool(received))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _any_rank(mine: bool) -> bool:
    if ranks() == 1:
        return mine
    import torch
    import torch.distributed as group

    device = "cuda" if group.get_backend() == "nccl" else "cpu"
    flag = torch.tensor([float(mine)], device=device)
    group.all_reduce(flag, op=group.ReduceOp.MAX)
    return bool(flag.item())


def wait_for_all() -> None:
    """Every rank goes on when the last has come this far."""
    if ranks() > 1:
        import torch.distributed as group

        group.barrier()
