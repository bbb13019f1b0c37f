"""Ports: no command that trains or serves opens one that another user of the machine could use (docs/trust.md, Ports).

While a command runs, the listeners of all its processes are read, and as another user garbage and pickles are sent to
each.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import r2v
from r2v.llm.engines.release import ENGINE_KEY_ENV
from tests import trust, warm
from tests.llm.engines.stub_server import stub_engine
from tests.stages import test_train_hierarchical
from tests.trust.alter import hard_copy

DOCUMENT = Path(__file__).parents[2] / "docs" / "trust.md"
TINY = Path(r2v.__file__).parent / "bundled" / "weights" / "tiny"
NOBODY = 65534
PATIENCE = 600.0
"""Seconds after which a training counts as hanging: it may wait three minutes for a rank whose place an attacker has
taken."""
STRANGER = f"""
import os, pickle, socket, struct, sys
import encodings.idna

class Payload:
    def __reduce__(self):
        return os.system, (f"id > {{sys.argv[1]}}",)

pickled = pickle.dumps(Payload())
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
texts = [bytes(range(256)) * 64, pickled, struct.pack(">Q", len(pickled)) + pickled, b"GET / HTTP/1.0\\r\\n\\r\\n"]
for number in range(4):  # as gloo's first rank, then one frame
    frame = struct.pack("<6Q", 48 + len(pickled), 2, 0, 0, len(pickled), 0)
    texts.append(struct.pack("<q", number) + frame + pickled)
held = []
print("ready", flush=True)
for line in sys.stdin:
    for text in texts:
        family = socket.AF_INET6 if ":" in line.split()[0] else socket.AF_INET
        connection = socket.socket(family)
        connection.settimeout(5)
        try:
            connection.connect((line.split()[0], int(line.split()[1])))
            connection.sendall(text)
        except OSError:
            continue
        held.append(connection)  # closed, it would be noticed
    print(line.strip(), len(held), flush=True)
"""
"""Another user of the machine, who is given addresses and sends everything that might be read as more than bytes."""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A TCP socket that a process listens on."""

    pid: int
    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A watched command: its end, its listeners, the ranks' process ids, and the attacker's messages."""

    code: int
    error: str
    listeners: list[Listener]
    ranks: set[int]
    sent: list[str]
    executed: bool


def listening_sockets() -> dict[int, tuple[str, int]]:
    """Return address and port of all of the machine's TCP listeners, by inode."""
    sockets: dict[int, tuple[str, int]] = {}
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # TCP_LISTEN
                digits, _, port = fields[1].partition(":")
                words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
                sockets[int(fields[9])] = str(ipaddress.ip_address(b"".join(words))), int(port, 16)
    return sockets


def new_listeners(seen: set[int], folder: Path) -> list[Listener]:
    """Return the listeners that are not in `seen` yet, of the processes that work in a folder; add them, and all
    others, to it. A command's processes are no descendants of ours: they are forks of the server in tests/warm."""
    sockets = {inode: place for inode, place in listening_sockets().items() if inode not in seen}
    seen |= sockets.keys()
    listeners = []
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # it has ended meanwhile, or closed the socket
            if not (process / "cwd").readlink().is_relative_to(folder.resolve()):
                continue
            for link in (process / "fd").iterdir():
                inode = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
                if inode and int(inode[1]) in sockets:
                    address, port = sockets.pop(int(inode[1]))
                    listeners.append(Listener(pid=int(process.name), address=address, port=port))
    return listeners


@contextmanager
def stranger(evidence: Path) -> Iterator[subprocess.Popen[str] | None]:
    """Yield the other user, ready; None if we cannot become one."""
    if os.geteuid():
        yield None
        return
    words = [sys.executable, "-c", STRANGER, str(evidence)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def watch(folder: Path, *words: str) -> Watched:
    """Run a command to its end; attack its listeners at once."""
    evidence, listeners, sent = folder / "executed", list[Listener](), list[str]()
    seen, ranks = set(listening_sockets()), set[int]()
    # An interface that other machines reach, as a site may export one.
    interfaces = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), other_interface())
    with stranger(evidence) as attacker:
        process, deadline = warm.start(folder, *words, env=interfaces), time.monotonic() + PATIENCE
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            for listener in new_listeners(seen, folder):
                listeners.append(listener)
                if attacker is not None and attacker.stdin is not None:
                    attacker.stdin.write(f"{listener.address} {listener.port}\n")
                    attacker.stdin.flush()
            ranks |= {
                int(path.name.removeprefix("pid-")) for path in Path(tempfile.gettempdir()).glob("r2v-ranks-*/pid-*")
            }
            time.sleep(0.25)
        _, error = process.communicate()
        if attacker is not None and attacker.stdin is not None and attacker.stdout is not None:
            attacker.stdin.close()
            sent = attacker.stdout.read().splitlines()
    return Watched(
        code=process.returncode,
        error=error,
        listeners=listeners,
        ranks=ranks,
        sent=sent,
        executed=evidence.exists(),
    )


def other_interface() -> str:
    """Return an interface that is not the loopback, if there is one; else a name without an interface."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    return next((name for name in names if psutil.net_if_stats()[name].isup), "none0")


def listed_libraries() -> set[str]:
    """Return the libraries whose ports the page lists."""
    section = DOCUMENT.read_text().partition("\n## Ports\n")[2].partition("\n## ")[0]
    rows = section.partition("| library |")[2].splitlines()[2:]
    return {row.split("|")[1].split(",")[0].split("(")[0].strip() for row in rows if row.startswith("|")}


def require_private(watched: Watched) -> None:
    """Require that all listeners are gloo's, in two ranks, on the loopback."""
    assert all(ipaddress.ip_address(listener.address).is_loopback for listener in watched.listeners), watched.listeners
    listening = {listener.pid for listener in watched.listeners}
    assert len(listening) == 2 and listening <= watched.ranks and "gloo" in listed_libraries()


TWO_RANKS = ("training.ranks=2", "policy.device=cpu")
TRAININGS = {
    "bc": ("train_policy", "--stage", "bc"),
    "verifier": ("train_verifier",),
    "preference": ("train_policy", "--stage", "preference"),
    "hierarchical": ("train_hierarchical",),
}
SMALL = {
    "bc": ("training.bc.max_examples=20",),
    "hierarchical": tuple(test_train_hierarchical.SMALL),
}


def trained(name: str, micro_run: Path, folder: Path) -> Watched:
    """Make a stage of the micro run again, by two ranks."""
    project = hard_copy(micro_run, folder / "project")
    words = (*TRAININGS[name], "--config", str(trust.MICRO), "--overrides", *TWO_RANKS, *SMALL.get(name, ("seed=2",)))
    return watch(project, *words)


def test_two_ranks_listen_on_the_loopback_alone_and_run_nothing_that_a_stranger_sends(
    micro_run: Path, tmp_path: Path
) -> None:
    watched = trained("bc", micro_run, tmp_path)
    require_private(watched)
    assert watched.code == 0 or watched.error.strip().splitlines()[-1].startswith("r2v: "), watched.error
    assert "Traceback" not in watched.error
    if os.geteuid():
        pytest.skip("only root can be another user: no stranger sent anything")
    assert len(watched.sent) == len(watched.listeners) and not watched.executed


@pytest.mark.whole
@pytest.mark.parametrize("name", ["verifier", "preference", "hierarchical"])
def test_every_training_listens_as_bc_does(name: str, micro_run: Path, tmp_path: Path) -> None:
    watched = trained(name, micro_run, tmp_path)
    require_private(watched)
    assert not watched.executed and (watched.code == 0 or re.search("^r2v: ", watched.error, re.MULTILINE))


def test_a_server_of_ours_answers_nobody_without_its_key(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen = set(listening_sockets())
    engine = f"policy.engine_venv={stub_engine(tmp_path / 'engine')}"
    policy = (f"policy.model_name={TINY}", "policy.lora_r=8", "policy.device=cpu", engine)
    words = ("engine", "serve", "--port", str(port), "--overrides", *policy)
    process, workers = warm.start(tmp_path, *words, env={ENGINE_KEY_ENV: None}), list[psutil.Process]()
    try:
        assert process.stdout is not None
        key = Path(process.stdout.readline().rpartition("$(cat ")[2].rstrip(")\n")).read_text()
        while not (listeners := new_listeners(seen, tmp_path)):
            assert process.poll() is None
            time.sleep(0.05)
        workers = psutil.Process(listeners[0].pid).children()
        assert [(listener.address, listener.port) for listener in listeners] == [("127.0.0.1", port)]
        url = f"http://127.0.0.1:{port}/v1/models"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url)
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
        assert urllib.request.urlopen(asked).status == 200
    finally:
        process.terminate()
        process.wait()
        for worker in workers:
            worker.kill()
        process.communicate()


def test_the_page_lists_the_libraries_that_listen() -> None:
    assert listed_libraries() >= {"gloo", "NCCL", "wandb"}
