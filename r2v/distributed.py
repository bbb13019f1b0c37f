"""Distributed training: one process (rank) per GPU, started and stopped together.

    launch(2, "-m", "r2v.stages.train_policy", folder)      # the command itself stays a plain process

The launch starts the ranks and ends all of them when one dies. Every rank writes a record of its error, so the command
fails with the error of the first failed rank. A request to stop reaches all ranks, which agree on the update after
which they stop. No rank outlives the command, because it works under the command's lease. Torch's launcher (torchrun)
is not used: it opens a server on every interface, without a key, and unpickles received data (`r2v.rendezvous`).
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType

from r2v.environment import without_launchers
from r2v.errors import UsageError
from r2v.log import CURVES_FILE, logger, setup
from r2v.rank_failures import cause_of, stopped
from r2v.rendezvous import STORE_FILE, locked, make_group
from r2v.several_nodes import MEET, NODE_AGENT, node_count, per_node, shared_folder, span
from r2v.signals import WATCH, stop_signals
from r2v.storage import record
from r2v.storage.files import write_json

_LAUNCH = "R2V_LAUNCH"
"""Variable for ranks: folder of the launch's error records."""
_STORE = "R2V_STORE"
"""Variable for ranks: store file of the launch's rendezvous."""
STOP_FILE = "stop"
"""File in that folder that requests a stop, also of ranks that have not begun."""
WAITING_TIME = timedelta(hours=2)
"""Limit on waiting for other ranks, as during a checkpoint by rank 0: NCCL's default of ten minutes is too short for
190 GB on a network disk."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_ENDING_TIME = 30.0
"""Seconds from SIGTERM to SIGKILL for an ending rank."""
_EVERY = 0.05
"""Seconds between two checks of the ranks' processes."""
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Interface of gloo and NCCL if all ranks are on one machine."""


def rank() -> int:
    """Return this process's rank; 0 in a plain process."""
    return int(os.environ["RANK"]) if _LAUNCH in os.environ else 0


def ranks() -> int:
    """Return the number of ranks; 1 in a plain process."""
    return int(os.environ["WORLD_SIZE"]) if _LAUNCH in os.environ else 1


def own_device(device: str) -> str:
    """Return this rank's device; `auto` and `cuda` mean one GPU per rank."""
    if _LAUNCH in os.environ and device in ("auto", "cuda") and visible_gpus():
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return device


def ranks_for(requested: int | None, device: str) -> int:
    """Return the number of ranks of a training: as requested, or one per visible GPU, or one. Raises UsageError for
    more ranks than GPUs."""
    gpus = node_count() * visible_gpus() if device in ("auto", "cuda") else int(device != "cpu")
    if requested is None:
        return max(1, gpus)
    if requested > 1 and device != "cpu" and requested > gpus:
        raise UsageError(
            f"training.ranks={requested}: policy.device={device} gives {gpus} GPUs; ask for no more, leave "
            "training.ranks out, or set policy.device=cpu"
        )
    return requested


def crowded(device: str) -> bool:
    """True if a plain process sees several GPUs: transformers would spread it over all of them (DataParallel), which
    multiplies the batch. A rank sees one."""
    return device != "cpu" and visible_gpus() > 1


def require_deepspeed(setting: str, device: str, instead: str = "training.zero=0") -> None:
    """Raise UsageError if sharded training is impossible here. `setting`: the request. `instead`: the alternative."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UsageError(f"{setting}: deepspeed is not installed; pip install 'r2v[gpu]', or set {instead}")
    if device != "cpu" and not visible_gpus():
        raise UsageError(f"{setting}: no GPU is visible here; set {instead}, or policy.device=cpu to try it slowly")


def cut(batch_size: int, accumulation: int, count: int) -> tuple[int, int]:
    """Return (rows per micro-batch, micro-batches per update) of each of `count` ranks, for the same total of rows per
    update and micro-batches of at most `batch_size`. Raises UsageError if the rows cannot be divided equally.

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
    """Return the number of GPUs that this process sees."""
    import torch

    return torch.cuda.device_count()


def launch(count: int, *command: str) -> None:
    """Run `python *command` as `count` ranks on this machine, or on all nodes of a Slurm job, until all are done.
    Raises the error of the first failed rank (R2VError as itself, any other as Recorded), and Interrupted after a
    request to stop."""
    _make_room()
    nodes = node_count()
    shared = shared_folder() if nodes > 1 else None
    remedy = "set TMPDIR to a folder of a local disk" if shared is None else "move the checkout to one that has them"
    with (
        tempfile.TemporaryDirectory(prefix="r2v-ranks-", dir=shared) as name,
        launching(Path(name)) as folder,
        locked(folder, remedy),
    ):
        cause = (_on_this_machine if nodes == 1 else _on_all_nodes)(folder, count, command)
        if cause is None and (folder / STOP_FILE).exists():
            cause = stopped()
    if cause is not None:
        raise cause


def _on_this_machine(folder: Path, count: int, command: Sequence[str]) -> Exception | None:
    deaths = run_ranks(folder, command, range(count), ranks=count, store=folder / STORE_FILE, environment=_LOOPBACK)
    return cause_of([folder], deaths, stop_requested=(folder / STOP_FILE).exists()) if deaths else None


def _on_all_nodes(folder: Path, count: int, command: Sequence[str]) -> Exception | None:
    """Run a rendezvous of the ranks, which finds in a minute faults that would hang a training; then the command."""
    nodes = node_count()
    share = per_node(count, nodes)
    for part, words in (("meeting", ("-m", NODE_AGENT, MEET, str(folder))), ("work", tuple(command))):
        (folder / part).mkdir()
        deaths = span(folder / part, nodes=nodes, per_node=share, command=words)
        if deaths:
            return cause_of(
                sorted((folder / part).glob("node-*")), deaths, stop_requested=(folder / STOP_FILE).exists()
            )
    return None


def run_ranks(
    folder: Path,
    command: Sequence[str],
    numbers: range,
    *,
    ranks: int,
    store: Path,
    environment: Mapping[str, str] = {},
) -> dict[int, tuple[int, int]]:
    """Run this node's ranks of a launch until all have ended; if one fails, end the others. Return rank -> (exit code,
    time in seconds since the epoch) of the failed ones."""
    inherited = without_launchers(os.environ)  # srun sets some for a node's agent
    shared = {
        _LAUNCH: str(folder),
        _STORE: str(store),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(len(numbers)),
        # No address: a library that asks torch for env:// is refused, where torch would open a server on every
        # interface.
        "MASTER_ADDR": "none",
        "MASTER_PORT": "none",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "NCCL_RAS_ENABLE": os.environ.get("NCCL_RAS_ENABLE", "0"),  # else NCCL opens a port that answers any client
        **environment,
    }
    running: dict[int, subprocess.Popen[bytes]] = {}
    deaths: dict[int, tuple[int, int]] = {}

    def note_ended() -> None:
        for number, process in list(running.items()):
            if (code := process.poll()) is not None:
                del running[number]
                if code:
                    deaths[number] = (code, int(time.time()))

    read_end, write_end = os.pipe()  # closed with this process, for ranks that start after its death (`run_rank`)
    try:
        for local, number in enumerate(numbers):
            running[number] = subprocess.Popen(
                [sys.executable, *command],
                env={**inherited, **shared, "RANK": str(number), "LOCAL_RANK": str(local)},
                stdin=read_end,
                start_new_session=True,
            )
        while running and not deaths:
            time.sleep(_EVERY)
            note_ended()
    finally:
        _end(running.values())
        os.close(read_end)
        os.close(write_end)
    note_ended()
    return deaths


def _end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """End processes and their children: by SIGTERM, and after `_ENDING_TIME` by SIGKILL."""
    for number, seconds in ((signal.SIGTERM, _ENDING_TIME), (signal.SIGKILL, _ENDING_TIME)):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        deadline = time.monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):  # killed, but stuck in a driver: nothing ends it
                process.wait(max(0.0, deadline - time.monotonic()))


@contextmanager
def launching(folder: Path) -> Iterator[Path]:
    """Forward a signal as a request to stop to the ranks of a launch, which stop after their update. A second signal,
    except SIGHUP, interrupts."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        WATCH.heard()
        if (folder / STOP_FILE).exists():
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        (folder / STOP_FILE).touch()
        for path in folder.glob("pid-*"):
            with suppress(ProcessLookupError):
                os.kill(int(path.name.removeprefix("pid-")), signal.SIGTERM)

    before = {number: signal.signal(number, request_stop) for number in stop_signals()}
    try:
        yield folder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_room() -> None:
    """Free this process's unused GPU memory for the ranks."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def run_rank(act: Callable[[], None]) -> int:
    """Run `act` as a rank of a launch and return the exit code. Only rank 0 logs and writes records."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if select.select([0], [], [], 0)[0]:
        os._exit(1)  # the launch died before prctl
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal signals the launch too, which stops the ranks
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
        for number in (signal.SIGTERM, signal.SIGINT):  # the launch's own SIGTERM must not cut the record short
            signal.signal(number, signal.SIG_IGN)
        described = record.describe(error)
        trace = traceback.format_exc()
        write_json(folder / f"{rank()}.json", {"error": described, "time": time.time(), "trace": trace})
        os._exit(described["exit_code"])  # an orderly exit would wait for a collective in which the others hang
    _leave()
    return 0


def _leave() -> None:
    """Exit with 0 without destroying the process group: on a busy machine gloo's threads abort about one of ten orderly
    exits ("terminate called without an active exception")."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_initialized():
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Record a first signal to stop within the block. Yield a function that returns True on all ranks once any rank got
    one; all must call it equally often. A second signal interrupts at once. Only the main thread handles signals."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        WATCH.heard()
        # A scheduler and the launch may each signal a rank; kernel and shell may each send a SIGHUP.
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


def join(device: str, timeout: timedelta = WAITING_TIME) -> None:
    """Initialise the launch's process group in a rank without one: NCCL between GPUs, gloo on a CPU. `device`: this
    rank's. Call it before transformers, accelerate and DeepSpeed, which use an existing group."""
    import torch
    import torch.distributed as group

    if _LAUNCH not in os.environ or group.is_initialized():
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(torch.device(device))
    backend = "nccl" if on_gpu else "gloo"
    make_group(Path(os.environ[_STORE]), rank=rank(), ranks=ranks(), backend=backend, timeout=timeout)


def exchange(own: bytes) -> list[bytes]:
    """Return all ranks' bytes, in their order, on every rank; all must call. Bytes, because nothing from a socket is
    unpickled."""
    if ranks() == 1:
        return [own]
    import torch
    import torch.distributed as group

    device = _group_device()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks())]
    group.all_gather(sizes, torch.tensor([len(own)], device=device))
    longest = max(1, *(int(size) for size in sizes))
    padded = torch.frombuffer(bytearray(own.ljust(longest, b"\0")), dtype=torch.uint8).to(device)
    received = [torch.empty_like(padded) for _ in range(ranks())]
    group.all_gather(received, padded)
    return [part[: int(size)].cpu().numpy().tobytes() for part, size in zip(received, sizes, strict=True)]


def _any_rank(mine: bool) -> bool:
    if ranks() == 1:
        return mine
    import torch
    import torch.distributed as group

    flag = torch.tensor([float(mine)], device=_group_device())
    group.all_reduce(flag, op=group.ReduceOp.MAX)
    return bool(flag.item())


def _group_device() -> str:
    """Return the device of tensors to be sent to other ranks."""
    import torch.distributed as group

    return "cuda" if group.get_backend() == "nccl" else "cpu"


def wait_for_all() -> None:
    """Wait until all ranks have called."""
    if ranks() > 1:
        import torch.distributed as group

        group.barrier()
