"""Ranks on several nodes: a stand-in for srun starts the agents side by side here, each as a node of its own, and the
rest is real; the drills of tests/slurm use a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import FileStore

from r2v.errors import EnvironmentFault, UsageError
from r2v.node_agent import meet
from r2v.rendezvous import locked
from r2v.several_nodes import node_count, per_node
from r2v.slurm.job.command_line import require_allocation_used, require_nodes_used
from r2v.storage.record import describe
from tests import warm

ROOT = Path(__file__).parents[1]
SRUN = """#!/bin/bash
nodes=1
while [[ "$1" == --* ]]; do [[ "$1" == --nodes=* ]] && nodes=${1#--nodes=}; shift; done
for ((node = 0; node < nodes; node++)); do
  SLURM_NODEID=$node SLURM_STEP_NUM_NODES=$nodes SLURMD_NODENAME=g$node "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait -n || { worst=$?; kill -KILL "${pids[@]}" 2>/dev/null; exit $worst; }; done
"""
RANK = """
import os, sys, time
import torch.distributed as group
from datetime import timedelta
from pathlib import Path
from r2v.distributed import join, rank, ranks, run_rank, stopping
folder = Path(sys.argv[1])
def act():
    join("cpu")
    import torch
    mine = torch.tensor([float(rank() + 1)], dtype=torch.float64)
    group.all_reduce(mine)
    (folder / f"{rank()} of {ranks()} on {os.environ['SLURMD_NODENAME']}").write_text(str(mine.item()))
    %s
sys.exit(run_rank(act))
"""
COMMAND = """
import sys
from r2v import distributed
from r2v.cli.boundary import guarded
from r2v.storage.record import recording
def act():
    with recording():
        distributed.launch(int(sys.argv[1]), *sys.argv[2:])
    return 0
sys.exit(guarded(act))
"""


def start(folder: Path, ending: str = "pass", ranks: int = 2) -> subprocess.Popen[str]:
    """Start a command that launches ranks on two nodes."""
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(SRUN)
    (folder / "bin" / "srun").chmod(0o755)
    (folder / "rank_code").write_text(RANK % ending)
    (folder / "record").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "g[0-1]",
        "CUDA_VISIBLE_DEVICES": "",
        "R2V_RECORD": str(folder / "record"),
    }
    return subprocess.Popen(
        [warm.python(), "-c", COMMAND, str(ranks), str(folder / "rank_code"), str(folder)],
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
    )


def test_ranks_are_numbered_over_the_nodes_and_the_record_says_where_each_is(tmp_path: Path) -> None:
    process = start(tmp_path, ranks=4)
    output = process.communicate(timeout=300)[1]
    assert process.returncode == 0, output
    assert {path.name for path in tmp_path.glob("* of 4 on *")} == {
        "0 of 4 on g0",
        "1 of 4 on g0",
        "2 of 4 on g1",
        "3 of 4 on g1",
    }
    assert all(path.read_text() == "10.0" for path in tmp_path.glob("* of 4 on *"))
    listed = json.loads((tmp_path / "record/ranks.json").read_text())["ranks"]
    assert [(rank_record["rank"], rank_record["node"], rank_record["device"]) for rank_record in listed] == [
        (0, "g0", "cpu"),
        (1, "g0", "cpu"),
        (2, "g1", "cpu"),
        (3, "g1", "cpu"),
    ]


def test_what_a_rank_of_another_node_raises_ends_the_command_as_it_would_here(tmp_path: Path) -> None:
    process = start(tmp_path, "from r2v.errors import InputError\n    if rank() == 1: raise InputError('row 9 is cut')")
    output = process.communicate(timeout=300)[1]
    assert process.returncode == 3 and "row 9 is cut" in output


def test_a_request_to_stop_reaches_the_ranks_of_every_node(tmp_path: Path) -> None:
    waiting = "with stopping() as told:\n        while not told(): time.sleep(0.05)\n    raise KeyboardInterrupt"
    process = start(tmp_path, waiting)
    deadline = time.monotonic() + 240
    while len(list(tmp_path.glob("* of 2 on *"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=300)[1]
    assert process.returncode == 75, output


def test_a_rank_that_reaches_nobody_is_a_fault_of_the_machine_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    FileStore(str(store)).set("arrived/0", "")  # the other rank came, and gives no address
    rank = {"R2V_LAUNCH": "7", "R2V_STORE": str(store), "RANK": "1", "WORLD_SIZE": "2", "SLURMD_NODENAME": "g7"}
    for name, value in rank.items():
        monkeypatch.setenv(name, value)
    with (
        locked(tmp_path, ""),
        pytest.raises(EnvironmentFault, match="NCCL preflight: rank 1 on g7 does not reach") as raised,
    ):
        meet(tmp_path, timedelta(seconds=1))
    assert "NCCL_IB_HCA" in str(raised.value) and "\n" not in str(raised.value)
    assert describe(raised.value)["kind"] == "machine"


def test_nodes_that_would_stand_idle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert per_node(4, 2) == 2 and node_count() == 1
    with pytest.raises(UsageError, match="3 ranks on 2 nodes"):
        per_node(3, 2)
    two = {"nodes": "2", "ntasks": "2"}
    for name in ("bc", "verifier", "preference", "hierarchical"):
        require_nodes_used(name, "a script", two)
    with pytest.raises(UsageError, match="evaluate works on one and the others would stand idle.*--helpers"):
        require_nodes_used("evaluate", "a script", two)
    with pytest.raises(UsageError, match="for which Slurm gives 1 nodes; set --ntasks=2"):
        require_nodes_used("bc", "a script", {"nodes": "2", "ntasks": "1"})
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    require_allocation_used(["train_policy", "--stage", "bc"])
    with pytest.raises(UsageError, match="this job has 2 nodes: router works on one"):
        require_allocation_used(["train_router"])
