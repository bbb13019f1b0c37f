"""A private, real Slurm on this machine: controller, four node daemons, accounting, fake GPUs; gone when it ends.

    with Cluster() as cluster:
        job = cluster.sbatch("--wrap=hostname")
        cluster.wait(lambda: cluster.states()[job] == "COMPLETED")

Nothing of the system's Slurm is read or touched: own folder, own free ports on 127.0.0.1, own key, own database. A
supervisor process (supervisor.py) owns all that runs and holds the other end of a pipe: when that closes, by `stop`
or because the test run was killed, everything ends. Nodes c1, c2 have no GPU, g1, g2 four each; partition urgent
preempts the other two.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.slurm.supervisor import NODES

SUPERVISOR = Path(__file__).with_name("supervisor.py")
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "sbatch", "sacct", "munged", "mariadbd", "mariadb-install-db")
GPUS = 4
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
REQUEUE_WAIT = 5
"""Seconds a requeued job waits (120 on a stock site)."""


def lacking() -> list[str]:
    """Return the required programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class Cluster:
    """A running cluster. `settings` are lines of slurm.conf, as in `Cluster(MinJobAge=5)`."""

    def __init__(self, **settings: object) -> None:
        shared = Path("/dev/shm")  # the database starts four times as fast there
        roomy = os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 512 << 20
        self.folder = Path(tempfile.mkdtemp(prefix="r2v-slurm-", dir=shared if roomy else None))
        self._settings = settings
        self._ports = dict(zip(("ctl", "dbd", *NODES), free_ports(2 + len(NODES)), strict=True))
        self.env = {
            key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))
        }
        self.env |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH}

    def __enter__(self) -> Cluster:
        configure(self.folder, self._ports, self._settings)
        self._supervisor = subprocess.Popen(
            [sys.executable, SUPERVISOR, str(self.folder), json.dumps(self._ports)],
            env=self.env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        said = self._answer()
        if said != "up":
            self.stop()
            raise RuntimeError(f"the test cluster did not start: {said}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """Return the controller's port."""
        return self._ports["ctl"]

    def stop(self) -> None:
        """End everything that was started and remove the folder; returns when it is done."""
        if self._supervisor.stdin:
            self._supervisor.stdin.close()
        self._supervisor.wait()

    def _answer(self) -> str:
        assert self._supervisor.stdout
        return self._supervisor.stdout.readline().strip() or "the supervisor died"

    def daemon(self, order: str, name: str) -> None:
        """Start or stop one daemon (slurmctld, slurmdbd, slurmd-c1, ...); `stop` kills it at once, as a crash does."""
        assert self._supervisor.stdin
        self._supervisor.stdin.write(f"{order} {name}\n")
        self._supervisor.stdin.flush()
        answer = self._answer()
        assert answer == "ok", answer

    def run(self, *command: str | Path, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's environment; `env` is added to it."""
        env = {**self.env, **options.pop("env", {})}
        done = subprocess.run(list(map(str, command)), env=env, text=True, capture_output=True, check=False, **options)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def sbatch(self, *arguments: str | Path, **options: Any) -> str:
        """Submit a job and return its id."""
        return self.run("sbatch", "--parsable", *arguments, **options).stdout.strip()

    def squeue(self, fields: str = "%i %T") -> list[str]:
        """Return one line for each pending or running job, oldest first."""
        said = self.run("squeue", "-h", "-S", "i", "-o", fields).stdout
        return [line.strip() for line in said.splitlines()]

    def states(self) -> dict[str, str]:
        """Return the state of every job in the controller's memory, finished ones included."""
        said = self.run("squeue", "-h", "-t", "all", "-o", "%i %T").stdout
        return dict(line.split() for line in said.splitlines())

    def job(self, job_id: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`."""
        words = self.run("scontrol", "-o", "show", "job", job_id).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, happened: Callable[[], Any], timeout: float = 60.0, every: float = 0.1) -> Any:
        """Poll until `happened` returns a true value, and return it; after `timeout` seconds fail and print the
        queue."""
        deadline = time.monotonic() + timeout
        while not (answer := happened()):
            if time.monotonic() > deadline:
                queue = self.run("squeue", "-t", "all", "-o", "%i %j %T %r %E %k").stdout
                raise TimeoutError(f"not within {timeout} s; the queue:\n{queue}")
            time.sleep(every)
        return answer

    @contextmanager
    def settings(self, **settings: object) -> Iterator[None]:
        """Apply these lines of slurm.conf for the length of the block."""
        configure(self.folder, self._ports, {**self._settings, **settings})
        self.run("scontrol", "reconfigure")
        try:
            yield
        finally:
            configure(self.folder, self._ports, self._settings)
            self.run("scontrol", "reconfigure")

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Drain all nodes for the length of the block: no job starts."""
        everything = f"nodename={','.join(NODES)}"
        self.run("scontrol", "update", everything, "state=drain", "reason=drill")
        try:
            yield
        finally:
            self.run("scontrol", "update", everything, "state=resume")

    @contextmanager
    def accounting_down(self) -> Iterator[None]:
        """Stop slurmdbd for the length of the block."""
        self.daemon("stop", "slurmdbd")
        try:
            yield
        finally:
            self.daemon("start", "slurmdbd")

    @contextmanager
    def submit_limit(self, jobs: int) -> Iterator[None]:
        """Limit this user's jobs in the queue (MaxSubmitJobs) for the length of the block."""
        change = ("sacctmgr", "-i", "modify", "user", getpass.getuser(), "set")
        self.run(*change, f"maxsubmitjobs={jobs}")
        try:
            yield
        finally:
            self.run(*change, "maxsubmitjobs=-1")


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def configure(folder: Path, ports: Mapping[str, int], settings: Mapping[str, object]) -> None:
    """Write the configuration files of a cluster into this folder."""
    for name in ("log", "run", "state", "spool", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(mode=0o755, exist_ok=True, parents=True)
    folder.chmod(0o755)
    devices = [folder / f"gpu{index}" for index in range(GPUS)]
    for device in devices:  # Slurm sets CUDA_VISIBLE_DEVICES for character devices only
        if not device.is_symlink():
            device.symlink_to("/dev/null")
    if not (folder / "munge.key").exists():
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "gres.conf").write_text(
        f"AutoDetect=off\nNodeName=g[1-2] Name=gpu Type=a100 Flags=nvidia_gpu_env File={folder}/gpu[0-{GPUS - 1}]\n"
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    _replace(folder / "slurmdbd.conf", _lines(_slurmdbd(folder, ports)), 0o600)
    _replace(folder / "slurm.conf", _lines({**_slurm(folder, ports), **settings}) + _machines(ports), 0o644)


def _replace(path: Path, text: str, mode: int) -> None:
    draft = path.with_suffix(".new")
    draft.touch(mode=mode)
    draft.write_text(text)
    draft.replace(path)


def _lines(settings: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _slurm(folder: Path, ports: Mapping[str, int]) -> dict[str, object]:
    host, me, munge = socket.gethostname().split(".")[0], getpass.getuser(), folder / "run/munge.sock"
    return {
        "ClusterName": "drill",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": me,
        "SlurmdUser": me,
        "SlurmctldPort": ports["ctl"],
        "SlurmctldParameters": "enable_configless",
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={munge},cred_expire={REQUEUE_WAIT}",  # cred_expire sets the delay of a requeued job
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool/%n",
        "SlurmctldPidFile": folder / "run/slurmctld.pid",
        "SlurmdPidFile": folder / "run/slurmd-%n.pid",
        "SlurmctldLogFile": folder / "log/slurmctld.log",
        "SlurmdLogFile": folder / "log/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=1",
        "JobAcctGatherParams": "OverMemoryKill,UsePss",
        "PropagateResourceLimits": "NONE",
        "SlurmdParameters": "config_overrides",
        "GresTypes": "gpu",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_Memory",
        "DefMemPerCPU": 512,
        "ReturnToService": 2,
        "SlurmdTimeout": 60,
        "MinJobAge": 300,
        "KillWait": 2,
        "InactiveLimit": 0,
        "WaitTime": 0,
        "CompleteWait": 0,
        "UnkillableStepTimeout": 30,
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1,bf_continue,"
        "default_queue_depth=1000",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": 1,
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": ports["dbd"],
        "AccountingStoragePass": munge,
        "AccountingStorageTRES": "gres/gpu,gres/gpu:a100",
        "AccountingStorageEnforce": "limits",
        "AccountingStoreFlags": "job_comment,job_env,job_script",
    }


def _slurmdbd(folder: Path, ports: Mapping[str, int]) -> dict[str, object]:
    return {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/run/munge.sock",
        "SlurmUser": getpass.getuser(),
        "DbdHost": socket.gethostname().split(".")[0],
        "DbdAddr": "127.0.0.1",
        "DbdPort": ports["dbd"],
        "LogFile": folder / "log/slurmdbd.log",
        "PidFile": folder / "run/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm",
        "CommunicationParameters": "NoInAddrAny",
    }


def _machines(ports: Mapping[str, int]) -> str:
    """Return the nodes, which claim more than the machine has, and the partitions."""
    host = socket.gethostname().split(".")[0]
    shape = "CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=524288 State=UNKNOWN"
    nodes = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node]} {shape}"
        + (f" Gres=gpu:a100:{GPUS}" if node.startswith("g") else "")
        for node in NODES
    ]
    partitions = [
        "cpu Nodes=c[1-2] Default=YES PriorityTier=1",
        "gpu Nodes=g[1-2] PriorityTier=1",
        "urgent Nodes=c[1-2],g[1-2] PriorityTier=10 PreemptMode=OFF",
    ]
    return (
        "\n".join(
            [*nodes, *(f"PartitionName={one} MaxTime=UNLIMITED DefaultTime=01:00:00 State=UP" for one in partitions)]
        )
        + "\n"
    )
