"""Agent of a node: srun starts one per node of a job (`r2v.several_nodes`), and it starts that node's ranks.

python -m r2v.node_agent FOLDER RANKS COMMAND...       # an agent
python -m r2v.node_agent meet FOLDER                   # a rank that only meets the others
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from r2v.distributed import STOP_FILE, exchange, join, launching, own_device, rank, run_rank, run_ranks, visible_gpus
from r2v.log import logger
from r2v.rank_failures import died
from r2v.rendezvous import STORE_FILE, require_lock_seen
from r2v.several_nodes import AGENT, DEATHS, MEET, RANKS_FILE
from r2v.storage import record
from r2v.storage.files import write_json, write_text

MEETING_TIME = timedelta(seconds=180)
"""Limit on the ranks' wait for each other before the training."""


def meet(launch_folder: Path, timeout: timedelta = MEETING_TIME) -> None:
    """Exchange a message between all ranks, and list them in the job's record. Raises EnvironmentFault for a fault of
    the network, or if the launch's shared folder has no locks between nodes."""
    import torch
    import torch.distributed as group

    require_lock_seen(launch_folder)
    device = own_device("auto") if visible_gpus() else "cpu"
    host = socket.gethostname()
    here = {"rank": rank(), "node": os.environ.get("SLURMD_NODENAME", host), "host": host, "device": device}
    try:
        join(device, timeout)
        group.all_reduce(torch.ones(1, device=device))
        everyone = [json.loads(greeting) for greeting in exchange(json.dumps(here).encode())]
    except Exception as error:  # torch raises many types here, all for an unreachable rank
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        fault = died(
            f"NCCL preflight: rank {rank()} on {here['node']} does not reach the others ({reason}); name the "
            "network in scripts/slurm/env.sh (NCCL_SOCKET_IFNAME, NCCL_IB_HCA); NCCL_DEBUG=INFO says more",
            type(error).__name__,
            "machine",
        )
        raise fault from fault.__cause__  # its record selects the healing
    if rank() == 0 and (folder := os.environ.get(record.FOLDER)):
        write_json(Path(folder) / RANKS_FILE, {"ranks": everyone})
        listed = ", ".join(f"{peer['rank']} on {peer['node']} ({peer['device']})" for peer in everyone)
        logger.info("ranks connected: ranks=%s", listed)


@contextmanager
def _following(stop: Path) -> Iterator[None]:
    """Send this process SIGTERM within the block once the shared stop file exists."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            if stop.exists():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _run_agent(folder: Path, share: int, command: Sequence[str]) -> int:
    """Run the agent of one node and return its exit code: 0 also after a request to stop, because srun would kill the
    ranks of other nodes before they have saved their state."""
    os.environ[AGENT] = node = os.environ["SLURM_NODEID"]
    nodes = int(os.environ.get("SLURM_STEP_NUM_NODES") or os.environ["SLURM_NNODES"])
    own, first = folder / f"node-{node}", int(node) * share
    own.mkdir()
    with launching(own), _following(folder.parent / STOP_FILE):
        numbers = range(first, first + share)
        deaths = run_ranks(own, command, numbers, ranks=nodes * share, store=folder / STORE_FILE)
    if deaths:
        write_text(own / DEATHS, json.dumps(deaths))
    return int(bool(deaths) and not (own / STOP_FILE).exists())


if __name__ == "__main__":
    if sys.argv[1] == MEET:
        sys.exit(run_rank(lambda: meet(Path(sys.argv[2]))))
    sys.exit(_run_agent(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
