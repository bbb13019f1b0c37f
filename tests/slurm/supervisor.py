"""Supervisor process of a test cluster: `python supervisor.py FOLDER PORTS`, configuration in the folder.

It starts the daemons and prints `up`; answers `stop NAME` and `start NAME` on stdin with `ok`; and when stdin closes,
however the other side ended, kills its whole tree and removes the folder. As the subreaper of that tree it inherits
every daemon and job process whose own parent is gone, so that none can slip away.
"""

from __future__ import annotations

import ctypes
import getpass
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

NODES = ("c1", "c2", "g1", "g2")


class Supervisor:
    """Starts the daemons, obeys orders on stdin, and at its end kills everything below it."""

    def __init__(self, folder: Path, ports: Mapping[str, int]) -> None:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of our tree become our children
        self.folder, self.ports = folder, ports
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, tuple[str, ...]] = {
            "munged": (
                "--foreground",
                "--force",
                f"--socket={folder}/run/munge.sock",
                f"--key-file={folder}/munge.key",
                f"--pid-file={folder}/run/munged.pid",
                f"--log-file={folder}/log/munged.log",
                f"--seed-file={folder}/run/munge.seed",
            ),
            "mariadbd": (
                "--no-defaults",
                f"--datadir={folder}/mysql",
                f"--socket={folder}/run/mysql.sock",
                f"--user={getpass.getuser()}",
                f"--pid-file={folder}/run/mysql.pid",
                "--skip-networking",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=8M",
                "--skip-name-resolve",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-lock-wait-timeout=900",
            ),
            "slurmdbd": ("-D",),
            "slurmctld": ("-D",),
            **{f"slurmd-{node}": ("-D", "-N", node) for node in NODES},
        }

    def start(self, name: str) -> None:
        """Start a daemon and wait until it answers."""
        program = name.partition("-")[0]
        with (self.folder / f"log/{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                [program, *self.commands[name]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env={**os.environ, "MYSQL_UNIX_PORT": str(self.folder / "run/mysql.sock")},
                start_new_session=True,
            )
        address: Any = {
            "munged": str(self.folder / "run/munge.sock"),
            "mariadbd": str(self.folder / "run/mysql.sock"),
            "slurmdbd": ("127.0.0.1", self.ports["dbd"]),
            "slurmctld": ("127.0.0.1", self.ports["ctl"]),
        }.get(name, ("127.0.0.1", self.ports.get(name.partition("-")[2], 0)))
        self.until(f"{name} answers", lambda: self.daemons[name].poll() is None and answers(address), name)

    def start_accounting(self, tries: int = 3) -> None:
        """Start slurmdbd, and again if it ended: on a busy machine the database listens before it can answer."""
        for left in reversed(range(tries)):
            try:
                return self.start("slurmdbd")
            except RuntimeError:
                if not left:
                    raise
                time.sleep(1.0)

    def until(self, what: str, happened: Callable[[], bool], name: str = "slurmctld") -> None:
        """Wait until `happened` is true. Raises RuntimeError with the end of that daemon's log."""
        deadline = time.monotonic() + 60
        while not happened():
            if time.monotonic() > deadline or self.daemons[name].poll() is not None:
                logs = [self.folder / f"log/{name}.log", self.folder / f"log/{name}.out"]
                raise RuntimeError(
                    f"waited in vain until {what}: "
                    + " | ".join(log.read_text()[-400:].strip() for log in logs if log.exists())
                )
            time.sleep(0.02)

    def bring_up(self) -> None:
        """Start all daemons in the order in which they need each other."""
        call(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.folder}/mysql",
            f"--user={getpass.getuser()}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-log-file-size=8M",
        )
        for name in ("munged", "mariadbd"):
            self.start(name)
        self.start_accounting()
        call("sacctmgr", "-i", "add", "cluster", "drill")
        if getpass.getuser() != "root":  # the account that exists from the beginning
            call("sacctmgr", "-i", "add", "user", getpass.getuser(), "account=root")
        for name in ("slurmctld", *(f"slurmd-{node}" for node in NODES)):
            self.start(name)
        self.until(
            "all nodes are idle",
            lambda: (
                call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split().count("g2") >= 2
                and len(set(call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())) == len(NODES)
            ),
        )

    def obey(self, orders: IO[str]) -> None:
        """Obey orders until the other end of the pipe is gone."""
        while True:
            self.reap()
            if not select.select([orders], [], [], 0.2)[0]:
                continue
            order, _, name = orders.readline().strip().partition(" ")
            if not order:
                return
            if order == "start":
                self.start(name)
            else:
                self.daemons[name].kill()
                self.daemons[name].wait()
            print("ok", flush=True)

    def reap(self) -> None:
        """Record the children that ended, our own and those we inherited."""
        ours = {daemon.pid for daemon in self.daemons.values() if daemon.poll() is None}
        for pid in children(os.getpid()):
            if pid not in ours:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def end(self) -> None:
        """Kill the whole tree and remove the folder."""
        while left := tree(os.getpid()):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.01)
        shutil.rmtree(self.folder, ignore_errors=True)


def call(*command: str) -> str:
    """Run a command to its end. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout} {done.stderr}")
    return done.stdout


def answers(address: Any) -> bool:
    """True if a process listens at a port or a socket file."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as client:
        return client.connect_ex(address) == 0


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    with suppress(OSError):
        return [
            int(word)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
    return []


def tree(pid: int) -> list[int]:
    """Return all processes below this one."""
    return [one for child in children(pid) for one in (child, *tree(child))]


def main() -> None:
    """Bring the cluster up, obey, and clean up."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    supervisor = Supervisor(Path(sys.argv[1]), json.loads(sys.argv[2]))
    try:
        supervisor.bring_up()
        print("up", flush=True)
        supervisor.obey(sys.stdin)
    except Exception as error:
        with suppress(BrokenPipeError):
            print(" ".join(str(error).split()), flush=True)
    finally:
        supervisor.end()


if __name__ == "__main__":
    main()
