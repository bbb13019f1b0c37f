"""Multi-node training: ranks on every node of a Slurm job, started by srun.

    deaths = span(folder, nodes=2, per_node=4, command=("-m", "r2v.stages.train_policy", work))

The command itself runs on the first node, like every batch script. srun starts one agent per node (`r2v.node_agent`),
which starts that node's ranks: 0 to 3 on the first, 4 to 7 on the second, so that results depend on the number of ranks
but not on their nodes. Agents and ranks write their errors to the shared folder, and the ranks meet through a file in
it (`r2v.rendezvous`). Before the training they meet once, and are listed in the job's record.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from r2v.errors import EnvironmentFault, UsageError
from r2v.storage import record
from r2v.storage.record import FOLDER

NODE_AGENT, MEET = "r2v.node_agent", "meet"
"""Module of the agent, and its argument for a rank that only meets the others."""
AGENT = "R2V_NODE_AGENT"
"""Environment variable that is set below a node's agent."""
DEATHS = "deaths"
"""File with the exit codes and times of an agent's failed ranks."""
RANKS_FILE = "ranks.json"
"""File in a job's record: every rank with its node, host and device."""
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def node_count() -> int:
    """Return the number of this job's nodes; 1 outside a job, and below a node's agent."""
    if AGENT in os.environ or not os.environ.get("SLURM_JOB_ID"):
        return 1
    return int(os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or 1)


def per_node(ranks: int, nodes: int) -> int:
    """Return the number of ranks per node. Raises UsageError for idle nodes or unequal shares."""
    if ranks % nodes:
        raise UsageError(
            f"{ranks} ranks on {nodes} nodes: a node would have fewer than another, or none; set training.ranks to a "
            f"multiple of {nodes}, or ask for fewer nodes in the script's header"
        )
    return ranks // nodes


def shared_folder() -> Path:
    """Return the folder shared by a job's nodes: the job's record, or the checkout's outputs."""
    return Path(os.environ.get(FOLDER) or "outputs").resolve()


def span(folder: Path, *, nodes: int, per_node: int, command: tuple[str, ...]) -> dict[int, tuple[int, int]]:
    """Run `python *command` as ranks on every node until all are done. Return rank -> (exit code, time) of the failed
    ones. Raises EnvironmentFault if srun started none."""
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    words = [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        sys.executable,
        "-m",
        NODE_AGENT,
        str(folder),
        str(per_node),
        *command,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_EXPORT_ENV"}
    step = subprocess.Popen(words, env=environment, start_new_session=True, preexec_fn=_die_with_parent)
    try:
        code = step.wait()
    finally:
        if step.poll() is None:
            step.terminate()
            step.wait()
    deaths: dict[int, tuple[int, int]] = {}
    for path in folder.glob(f"node-*/{DEATHS}"):
        deaths |= {int(rank): (code, at) for rank, (code, at) in json.loads(path.read_text()).items()}
    if code and not deaths and not list(folder.glob("node-*/*.json")) and not (folder / "stop").exists():
        error = EnvironmentFault(
            f"srun ended with {code} and no rank left a word, on {os.environ.get('SLURM_JOB_NODELIST')}; its own lines "
            "stand above. Try `srun hostname` in such a job"
        )
        error.__cause__ = record.Recorded(record.entry("srun", "machine", error.exit_code, str(error)))
        raise error
    return deaths


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
