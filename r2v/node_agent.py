"""The agent of a node: srun starts one on each node of a job (`r2v.several_nodes`), and it starts that node's ranks.

python -m r2v.node_agent FOLDER RANKS COMMAND...       # an agent
python -m r2v.node_agent meet FOLDER                   # a rank that meets the others, and no more
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
"""How long ranks wait for each other before the training."""


def meet(launch_folder: Path, timeout: timedelta = MEETING_TIME) -> None:
    """Every rank greets every other, and the job's record lists them. Raises what a fault of the network is, and
    EnvironmentFault where the folder of the launch, which all nodes see, has no locks between them."""
    import torch
    import torch.distributed as group

    require_lock_seen(launch_folder)
    device = own_device("auto") if visible_gpus() else "cpu"
    host = socket.gethostname()
    here = {"rank": rank(), "node": os.environ.get("SLURMD_NODENAME", host), "host": host, "device": device}
    try:
        join(device, timeout)
        group.all_reduce(torch.ones(1, device=device))
        everyone = [json.loads(said) for said in exchange(json.dumps(here).encode())]
    except Exception as error:  # torch raises many kinds of them here, and each says the same
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        fault = died(
            f"NCCL preflight: rank {rank()} on {here['node']} does not reach the others ({reason}); name the "
            "network in scripts/slurm/env.sh (NCCL_SOCKET_IFNAME, NCCL_IB_HCA); NCCL_DEBUG=INFO says more",
            type(error).__name__,
            "machine",
        )
        raise fault from fault.__cause__  # by which healing goes
    if rank() == 0 and (folder := os.environ.get(record.FOLDER)):
        write_json(Path(folder) / RANKS_FILE, {"ranks": everyone})
        logger.info("ranks: %s", ", ".join(f"{one['rank']} on {one['node']} ({one['device']})" for one in everyone))


@contextmanager
def _following(stop: Path) -> Iterator[None]:
    """Within the block a request to stop that stands in this file, which all nodes see, reaches this process."""
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
    """The agent of one node, which srun has started. Where its ranks were told to stop it ends well: srun would kill
    those of other nodes, which save what there is."""
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
