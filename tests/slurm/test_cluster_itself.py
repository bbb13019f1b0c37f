"""The test bed: a Slurm that behaves as a site's does, and nothing is left after it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import require_slurm

ROOT = Path(__file__).parents[2]
HOLD = """
import json, sys
from tests.slurm.cluster import Cluster
from tests.slurm.supervisor import tree
with Cluster() as cluster:
    job = cluster.sbatch("--wrap", "setsid sleep 1000 & sleep 1000", "-o", "/dev/null", "-D", "/tmp")
    cluster.wait(lambda: cluster.states()[job] == "RUNNING")
    supervisor = cluster._supervisor.pid
    cluster.wait(lambda: "sleep" in " ".join(open(f"/proc/{pid}/comm").read() for pid in tree(supervisor)))
    print(json.dumps([str(cluster.folder), cluster._ports, supervisor, *tree(supervisor)]), flush=True)
    sys.stdin.read()
"""


def test_a_job_gets_the_GPUs_it_asked_for(slurm: Cluster, tmp_path: Path) -> None:
    job = slurm.sbatch("-p", "gpu", "--gres=gpu:a100:2", "-o", tmp_path / "out", "--wrap=echo $CUDA_VISIBLE_DEVICES")
    slurm.wait(lambda: slurm.states()[job] == "COMPLETED")
    assert (tmp_path / "out").read_text() == "0,1\n"

    def billed() -> str:
        rows = slurm.run("sacct", "-nXPj", job, "-o", "State,AllocTRES").stdout
        return rows if "gres/gpu" in rows else ""

    rows = slurm.wait(billed)  # accounting learns of a job first and of its resources a moment later
    assert "gres/gpu=2" in rows and "gres/gpu:a100=2" in rows


def test_memory_beyond_what_was_asked_for_kills_the_job(slurm: Cluster, tmp_path: Path) -> None:
    eat = (
        f"{sys.executable} -c 'b = bytearray(300 << 20); b[::4096] = b[::4096].replace(bytes(1), bytes([1])); "
        "import time; time.sleep(60)'"
    )
    job = slurm.sbatch("--mem=100M", "-o", tmp_path / "out", "--wrap", eat)
    slurm.wait(lambda: slurm.states()[job] == "FAILED")
    assert "memory limit" in (tmp_path / "out").read_text()


def test_a_job_of_the_urgent_partition_preempts(slurm: Cluster) -> None:
    low = slurm.sbatch("--requeue", "-n", "64", "-w", "c1", "-o", "/dev/null", "--wrap=sleep 100")
    slurm.wait(lambda: slurm.states()[low] == "RUNNING")
    slurm.sbatch("-p", "urgent", "-n", "64", "-w", "c1", "-o", "/dev/null", "--wrap=sleep 0.1")
    slurm.wait(lambda: slurm.job(low)["Restarts"] == "1")


def test_settings_hold_for_their_block_only(slurm: Cluster) -> None:
    def configured() -> bool:
        return "MinJobAge               = 7 sec" in slurm.run("scontrol", "show", "config").stdout

    with slurm.settings(MinJobAge=7):
        assert configured()
    assert not configured()


def test_accounting_goes_and_comes_back(slurm: Cluster) -> None:
    with slurm.accounting_down():
        assert slurm.run("sacct", check=False).returncode != 0
        job = slurm.sbatch("-o", "/dev/null", "--wrap=true")
        slurm.wait(lambda: slurm.states()[job] == "COMPLETED")
    slurm.wait(lambda: "COMPLETED" in slurm.run("sacct", "-nXPj", job, "-o", "State", check=False).stdout)


@pytest.mark.slurm
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_test_run_leaves_no_process_no_port_and_no_file(number: signal.Signals) -> None:
    require_slurm()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    folder, ports, *pids = json.loads(process.stdout.readline())
    began = {pid: _began(pid) for pid in pids}
    assert len(began) > 10 and all(began.values())
    process.send_signal(number)
    process.wait()
    deadline = time.monotonic() + 30
    while (left := [pid for pid in pids if _began(pid) == began[pid]]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert not Path(folder).exists()
    for port in ports.values():
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0


def test_two_clusters_live_side_by_side(slurm: Cluster) -> None:
    with Cluster() as other:
        assert other.env["SLURM_CONF"] != slurm.env["SLURM_CONF"]
        job = other.sbatch("-o", os.devnull, "--wrap=true")
        other.wait(lambda: other.states()[job] == "COMPLETED")
        assert other.run("sinfo", "-h", "-o", "%R").stdout.split() == ["cpu", "gpu", "urgent"]


def _began(pid: int) -> str | None:
    """Return a process's start time; None if it is gone (or a zombie that its parent has not read)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
