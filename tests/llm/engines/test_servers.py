"""Servers are started, watched and restarted, and end with their owner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault
from r2v.llm.engines.release import EngineModel
from r2v.llm.engines.servers import ExternalServer, OwnServer
from tests.llm.engines.stub_server import stub_engine

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
MODEL = EngineModel(path="/models/llama", dtype="float32", max_model_len=256, lora_rank=8, gpu_memory=None)
HTTP_MODEL = replace(MODEL, chat="base")
"""A server of chat completions, which is reached over HTTP as external ones are."""


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    own = OwnServer(stub_engine(tmp_path / "engine") / "bin" / "python", getattr(request, "param", MODEL))
    yield own
    own.stop()


of_both_kinds = pytest.mark.parametrize("server", [MODEL, HTTP_MODEL], indirect=True, ids=["direct", "http"])


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def running() -> dict[int, tuple[int, str]]:
    """Return process -> (parent, command line)."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            processes[int(folder.name)] = parent, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return processes


def group_of(launcher: int) -> list[int]:
    """Return the processes of a launcher: the group's leader, the server and its workers."""
    processes, group, level = running(), list[int](), [launcher]
    while level := [pid for pid, (parent, _) in processes.items() if parent in level]:
        group += level
    return group


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"  # dead, and not yet waited for
    except OSError:
        return True


@of_both_kinds
def test_a_server_is_ready_and_its_key_stands_on_no_command_line(server: OwnServer) -> None:
    asyncio.run(server.ready())
    assert asyncio.run(server.healthy())
    assert not any(server.key in line for _, line in running().values())
    assert server.lives == 1
    asyncio.run(server.ready())  # on another event loop it is ready at once
    assert server.lives == 1


@of_both_kinds
def test_a_dead_server_is_started_again_once_for_all_who_wait(server: OwnServer) -> None:
    async def play() -> None:
        await server.ready()
        assert server.pid is not None
        os.kill(group_of(server.pid)[1], signal.SIGKILL)
        await asyncio.gather(*(server.recover(1) for _ in range(5)))
        assert server.lives == 2
        assert await server.healthy()
        await server.recover(2)  # the failure of a healthy server: not restarted
        assert server.lives == 2

    asyncio.run(play())


def test_an_engine_that_always_dies_is_given_up(server: OwnServer) -> None:
    async def play() -> None:
        await server.ready()
        for life in range(1, 10):
            assert server.pid is not None
            os.kill(group_of(server.pid)[1], signal.SIGKILL)
            await server.recover(life)

    with pytest.raises(EnvironmentFault, match="died 4 times without an answer"):
        asyncio.run(play())


def test_a_server_that_does_not_start_says_why(server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_STUB_REFUSES", "no kernel for heads of 24")
    with pytest.raises(EnvironmentFault, match="the server ended: RuntimeError: no kernel for heads of 24"):
        asyncio.run(server.ready())
    assert server.pid is None


def test_a_server_loads_while_its_owner_prepares(server: OwnServer) -> None:
    server.begin()
    server.begin()
    wait_for(lambda: asyncio.run(server.healthy()))
    asyncio.run(server.ready())
    assert server.lives == 1


def test_a_server_that_failed_while_its_owner_prepared_is_started_again(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_REFUSES", "memory was freed during the measurement")
    server.begin()
    monkeypatch.delenv("VLLM_STUB_REFUSES")
    asyncio.run(server.ready())
    assert server.lives == 2
    server.stop()
    monkeypatch.setenv("VLLM_STUB_REFUSES", "no kernel")
    server.begin()
    with pytest.raises(EnvironmentFault, match="the server ended: RuntimeError: no kernel"):
        asyncio.run(server.ready())


@pytest.mark.parametrize("server", [HTTP_MODEL], indirect=True)
def test_a_port_on_which_another_server_answers_is_left_for_a_free_one(
    server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_PORT_TAKEN", str(tmp_path / "taken"))
    asyncio.run(server.ready())
    assert (tmp_path / "taken").exists() and asyncio.run(server.healthy())


def test_a_stopped_server_leaves_no_process_and_no_folder(server: OwnServer) -> None:
    asyncio.run(server.ready())
    assert server.pid is not None and server._scratch is not None
    scratch, processes = server._scratch, [server.pid, *group_of(server.pid)]
    assert len(processes) == 4
    server.stop()
    assert not scratch.exists()
    wait_for(lambda: all(map(gone, processes)))


@pytest.mark.parametrize("killed", [0, 1, 2], ids=["launcher", "leader", "server"])
def test_whoever_of_them_is_killed_no_worker_is_left(server: OwnServer, killed: int) -> None:
    asyncio.run(server.ready())
    assert server.pid is not None
    processes = [server.pid, *group_of(server.pid)]
    assert len(processes) == 4
    os.kill(processes[killed], signal.SIGKILL)
    assert server._process is not None and server._process.wait(60) != 0
    wait_for(lambda: all(map(gone, processes)))


def test_a_worker_whose_masters_were_all_killed_at_once_goes_before_the_next_life(server: OwnServer) -> None:
    asyncio.run(server.ready())
    assert server.pid is not None
    launcher, leader, server_process, worker = server.pid, *group_of(server.pid)
    for pid in (leader, launcher, server_process):  # no watching process is left
        os.kill(pid, signal.SIGSTOP)
    for pid in (launcher, leader, server_process):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all(map(gone, (launcher, leader, server_process))))
    assert not gone(worker)
    asyncio.run(server.recover(server.lives))
    assert gone(worker) and server.lives == 2


OWNER = """
import asyncio, sys, time
from pathlib import Path
from r2v.llm.engines.servers import OwnServer
from tests.llm.engines.test_servers import MODEL
server = OwnServer(Path(sys.argv[1]), MODEL)
server.begin()
if sys.argv[2] == "ready":
    asyncio.run(server.ready())
print(server.pid, server._scratch, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
@pytest.mark.parametrize("state", ["ready", "begun"])
def test_no_server_outlives_its_owner(tmp_path: Path, kill: Callable[[int, int], None], state: str) -> None:
    python = stub_engine(tmp_path / "engine") / "bin" / "python"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(python), state],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    assert owner.stdout is not None
    try:
        launcher, scratch = owner.stdout.readline().split()
        wait_for(lambda: len(group_of(int(launcher))) == 3)
        processes = [int(launcher), *group_of(int(launcher))]
        assert len(processes) == 4
    finally:
        kill(owner.pid, signal.SIGKILL)
        owner.wait()
    wait_for(lambda: all(map(gone, processes)))
    wait_for(lambda: not Path(scratch).exists())


def test_a_foreign_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(EnvironmentFault, match="no server answers there"):
        asyncio.run(ExternalServer("http://127.0.0.1:9", "").ready())
