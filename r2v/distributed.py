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
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from r2v.errors import UsageError
from r2v.log import CURVES_FILE, logger, setup
from r2v.rank_failures import cause_of, stopped
from r2v.several_nodes import MEET, NODE_AGENT, node_count, per_node, shared_folder, span
from r2v.signals import stop_signals
from r2v.storage import record
from r2v.storage.files import write_json

_LAUNCH = "R2V_LAUNCH"
"""Names, to a rank, the folder that its launch collects errors in."""
STOP_FILE = "stop"
"""File in that folder which says that ranks that have yet to begin need not."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def rank() -> int:
    """Which of the ranks this process is; 0 in a plain process."""
    return int(os.environ["RANK"]) if _LAUNCH in os.environ else 0


def ranks() -> int:
    """How many ranks work together here; 1 in a plain process."""
    return int(os.environ["WORLD_SIZE"]) if _LAUNCH in os.environ else 1


def own_device(device: str) -> str:
    """The device of this rank, where `auto` or `cuda` means one GPU each."""
    if _LAUNCH in os.environ and device in ("auto", "cuda") and visible_gpus():
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return device


def ranks_for(asked: int | None, device: str) -> int:
    """How many ranks a training takes: those asked for, or one per visible GPU, or one. Raises UsageError where
    more are asked for than there are GPUs to give one each."""
    gpus = node_count() * visible_gpus() if device in ("auto", "cuda") else int(device != "cpu")
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
    return device != "cpu" and visible_gpus() > 1


def require_deepspeed(what: str, device: str, instead: str = "training.zero=0") -> None:
    """Raises UsageError where sharded training is asked for and cannot be had; `instead` names what can."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UsageError(f"{what}: deepspeed is not installed; pip install 'r2v[gpu]', or set {instead}")
    if device != "cpu" and not visible_gpus():
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


def visible_gpus() -> int:
    """GPUs that this process sees."""
    import torch

    return torch.cuda.device_count()


def launch(count: int, *command: str) -> None:
    """Run `python *command` as `count` ranks on this machine, or on every node of a Slurm job that has several, until
    all are done. Raises what the rank that failed first raised (one of our errors as itself, any other as Recorded),
    Interrupted when told to stop."""
    _make_room()
    nodes = node_count()
    shared = shared_folder() if nodes > 1 else None
    with tempfile.TemporaryDirectory(prefix="r2v-ranks-", dir=shared) as name, launching(Path(name)) as folder:
        cause = (_on_this_machine if nodes == 1 else _on_all_nodes)(folder, count, command)
        if cause is None and (folder / STOP_FILE).exists():
            cause = stopped()
    if cause is not None:
        raise cause


def _on_this_machine(folder: Path, count: int, command: Sequence[str]) -> Exception | None:
    meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "127.0.0.1"}
    deaths = run_agent(folder, command, run_id=folder.name, nproc_per_node=count, min_nodes=1, max_nodes=1, **meeting)
    return cause_of([folder], deaths, told=(folder / STOP_FILE).exists()) if deaths else None


def _on_all_nodes(folder: Path, count: int, command: Sequence[str]) -> Exception | None:
    """First the ranks meet, which tells in a minute what the training would hang in; then they train."""
    nodes = node_count()
    share = per_node(count, nodes)
    for part, words in (("meeting", ("-m", NODE_AGENT, MEET)), ("work", tuple(command))):
        (folder / part).mkdir()
        deaths = span(folder / part, nodes=nodes, per_node=share, command=words)
        if deaths:
            return cause_of(sorted((folder / part).glob("node-*")), deaths, told=(folder / STOP_FILE).exists())
    return None


def run_agent(folder: Path, command: Sequence[str], *, run_id: str, **where: Any) -> dict[int, tuple[int, int]]:
    """Run the ranks of one node; rank -> exit code and time, of those that ended badly. All nodes of a launch have the
    same `run_id`, or each waits for the others."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        max_restarts=0,
        run_id=run_id,
        signals_to_handle="SIGQUIT",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        **where,
    )
    try:
        elastic_launch(config, sys.executable)(*command)
    except ChildFailedError as failed:
        return {index: (one.exitcode, one.timestamp) for index, one in failed.failures.items()}
    return {}


@contextmanager
def launching(folder: Path) -> Iterator[Path]:
    """Tell ranks where their launch is, and that they are to stop when a signal comes; they leave when they are ready
    to, and torch's agent waits for none for long once another has left. A second signal, but SIGHUP, interrupts."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        if (folder / STOP_FILE).exists():
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        (folder / STOP_FILE).touch()
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
        for name in (record.FOLDER, CURVES_FILE):
            os.environ.pop(name, None)
    try:
        if (folder / STOP_FILE).exists():
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
