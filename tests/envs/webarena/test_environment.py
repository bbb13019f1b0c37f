"""An environment of WebArena when a site fails, when sites were changed, and on another site set."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from r2v.envs.base import Task
from r2v.envs.webarena.benchmark import WebArena
from r2v.errors import UsageError
from tests.envs.webarena import real_worlds
from tests.envs.webarena.playing import play
from tests.envs.webarena.stubs import Stub

HOST = "http://openstreetmap.org"


def task_of(benchmark: WebArena, id_: int) -> Task:
    return next(task for task in benchmark.tasks() if task.task_id == f"webarena.{id_}")


def goto(url: str) -> str:
    return json.dumps({"tool": "goto", "url": url})


@real_worlds
def test_a_page_that_fails_or_never_comes_is_a_fault_of_its_site_and_a_mistake_is_none(stub: Stub) -> None:
    benchmark = WebArena(tasks=[7], slow_mo=0, traces="", page_seconds=3)
    world = benchmark.make()
    for url, told in (("/broken", "answered 502"), ("/hanging", "did not answer within 3 s")):
        assert world.reset(seed=1, task=task_of(benchmark, 7))[1].env_fault is None
        _, reward, terminated, truncated, info = world.step(goto(HOST + url))
        assert (reward, terminated, truncated, info.success) == (0.0, False, True, None)
        assert info.env_fault is not None and info.env_fault.startswith("site: ") and info.env_fault.endswith(told)
    world.reset(seed=1, task=task_of(benchmark, 7))
    observation, _, _, truncated, info = world.step('{"tool":"click","bid":"999"}')
    assert info.is_error and info.env_fault is None and not truncated and "\nerror: " in observation
    elsewhere = f"http://localhost:{stub.servers['map'].server_address[1]}/"
    _, _, terminated, _, info = world.step(goto(elsewhere))
    assert (terminated, info.success, info.env_fault) == (True, False, None), "an address of no site ends the task"
    world.close()
    benchmark.close()


@real_worlds
def test_a_site_that_is_down_is_a_fault(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("WA_MAP", f"http://127.0.0.1:{port}")
    benchmark = WebArena(tasks=[7], slow_mo=0, traces="")
    world = benchmark.make()
    fault = world.reset(seed=1, task=task_of(benchmark, 7))[1].env_fault
    assert fault is not None and "ERR_CONNECTION_REFUSED" in fault
    world.close()
    benchmark.close()


@real_worlds
def test_sites_are_put_back_before_the_episode_after_one_that_changed_them(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sees it too: the state is a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WA_FULL_RESET", stub.url("homepage"))
    for ids, resets in (([389, 7], 0), ([7], 1), ([7], 1)):
        benchmark = WebArena(tasks=ids, slow_mo=0, traces="")
        task = benchmark.tasks()[-1]
        assert task.mutates == (ids[0] == 389)
        play(benchmark, task, [])
        benchmark.close()
        assert stub.resets == resets


@real_worlds
def test_a_site_set_of_a_name_is_played_at_its_own_addresses(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Stub()
    for name, value in other.variables("b").items():
        monkeypatch.setenv(name, value)
    benchmark = WebArena(tasks=[377], slow_mo=0, traces="")
    before = len(stub.pages)
    world = benchmark.make_at("b")
    observation, info = world.reset(seed=1, task=benchmark.tasks()[0])
    assert info.env_fault is None and observation.startswith(f"tab 0 (active): map / {HOST}/\n")
    assert "map/" in other.pages and len(stub.pages) == before
    world.close()
    benchmark.close()
    other.close()
    with pytest.raises(UsageError, match="WA_C_MAP not set"):
        benchmark.make_at("c")
