"""An environment in a child process: hanging, dying, flooding and raising are faults, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.envs.base import Task
from r2v.envs.worker.environment import WorkerEnvironment, WorldLimits
from r2v.envs.worker.pool import WorkerPool
from r2v.envs.worker.process import WorldProcess

HERE = Path(__file__).parent
TASK = Task(task_id="count", goal="count")


def spec(world: str = "Counter", **options: int) -> WorldProcess:
    return WorldProcess(world=f"worlds:{world}", options=options, search=(HERE,))


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    workers = WorkerPool(spec(start=10))
    yield workers
    workers.close()


@pytest.fixture
def world(pool: WorkerPool) -> Iterator[WorkerEnvironment]:
    environment = WorkerEnvironment(pool, limits=WorldLimits(reset_seconds=20, step_seconds=20), tools=())
    yield environment
    environment.close()


def alive(process: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(process: int) -> bool:
    """True if a process ends within ten seconds."""
    for _ in range(200):
        if not alive(process):
            return True
        time.sleep(0.05)
    return False


def test_a_world_is_played_and_its_process_serves_the_next_episode(pool: WorkerPool) -> None:
    places = []
    for seed in (1, 2):
        world = WorkerEnvironment(pool, limits=WorldLimits(), tools=())
        assert world.reset(seed=seed, task=TASK)[0] == f"count: {10 + seed}"
        assert world.step("more")[0] == str(11 + seed)
        places.append(world.step("where")[0])
        observation, reward, terminated, truncated, info = world.step("stop")
        assert (observation, reward, terminated, truncated, info.success) == ("bye", 1.0, True, False, True)
        world.close()
    assert places[0] == places[1]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("die", "step: the world's process ended (signal 9); it last said: no memory left for the page"),
        ("leave", "step: the world's process ended (exit code 3)"),
        ("raising", "step: KeyError: 'cart' (worlds.py:"),
        ("answer_much", "where at most 16777216 are taken"),
        ("no_number", "step: ValueError: Out of range float values"),
        ("half_an_answer", "step: the world's answer lacks reward, terminated, truncated"),
    ],
)
def test_trouble_in_a_step_is_a_fault_and_the_next_episode_has_a_new_process(
    world: WorkerEnvironment, action: str, says: str
) -> None:
    world.reset(seed=1, task=TASK)
    folder, process = world.step("where")[0].split()
    observation, reward, terminated, truncated, info = world.step(action)
    assert (observation, reward, terminated, truncated, info.success) == ("", 0.0, False, True, None)
    assert info.env_fault is not None and says in info.env_fault and "\n" not in info.env_fault
    assert gone(int(process)) and not Path(folder).exists()
    assert world.step("more")[4].env_fault == "step: the world's process is gone"
    assert world.reset(seed=2, task=TASK)[0] == "count: 12"


def test_what_a_world_prints_neither_stops_it_nor_is_kept(world: WorkerEnvironment) -> None:
    world.reset(seed=1, task=TASK)
    assert world.step("print_much")[0] == "print_much" and world.step("more")[0] == "12"


@pytest.mark.parametrize(
    ("task", "limits", "says"),
    [
        ("hang", WorldLimits(reset_seconds=0.5), "reset: no answer within 0.5 s"),
        ("die", WorldLimits(), "reset: the world's process ended (signal 9)"),
        ("count", WorldLimits(step_seconds=0.5), "step: no answer within 0.5 s"),
        ("count", WorldLimits(episode_seconds=2.0), "step: the episode took 2 s in the world"),
    ],
)
def test_every_wait_has_a_limit(pool: WorkerPool, task: str, limits: WorldLimits, says: str) -> None:
    world = WorkerEnvironment(pool, limits=limits, tools=())
    pool.give(pool.take())  # so that the time limit does not include the start of an interpreter
    info = world.reset(seed=1, task=Task(task_id=task, goal="count"))[1]
    if task == "count":
        info = world.step("hang")[4]
    assert info.env_fault is not None and says in info.env_fault
    world.close()


def test_a_world_that_cannot_be_made_says_why() -> None:
    pools = [
        (WorkerPool(spec("Broken")), "start: RuntimeError: no display (worlds.py:"),
        (WorkerPool(spec("Absent")), "start: AttributeError: module 'worlds' has no attribute 'Absent'"),
        (WorkerPool(WorldProcess(world="a:B", python=Path("/no/python"))), "/no/python: No such file or directory"),
    ]
    for pool, says in pools:
        info = WorkerEnvironment(pool, limits=WorldLimits(), tools=()).reset(seed=1, task=TASK)[1]
        assert info.env_fault is not None and says in info.env_fault


def test_it_sees_no_variable_that_was_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-never")
    monkeypatch.setenv("SHOP", "http://127.0.0.1:1")
    pool = WorkerPool(WorldProcess(world="worlds:Counter", search=(HERE,), environment={"SHOP": "http://127.0.0.1:2"}))
    world = WorkerEnvironment(pool, limits=WorldLimits(), tools=())
    world.reset(seed=1, task=TASK)
    seen = world.step("look")[0].split()
    assert "SHOP" in seen and not [name for name in seen if "KEY" in name or "TOKEN" in name or name.startswith("R2V")]
    world.close()
    pool.close()


def test_killing_it_ends_what_left_its_process_group_too(world: WorkerEnvironment) -> None:
    world.reset(seed=1, task=TASK)
    child = int(world.step("detach")[0])
    assert alive(child)
    assert "signal 9" in str(world.step("die")[4].env_fault)
    assert gone(child)


@pytest.mark.parametrize("looks", ["step", "close"])
def test_killing_the_guard_leaves_nothing_either(looks: str) -> None:
    pool = WorkerPool(spec())
    world = WorkerEnvironment(pool, limits=WorldLimits(), tools=())
    world.reset(seed=1, task=TASK)
    child = int(world.step("detach")[0])
    folder, process = world.step("where")[0].split()
    guard = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert gone(int(process)), "the kernel ends a world whose guard died"
    if looks == "step":
        assert "step: the world's process ended" in str(world.step("more")[4].env_fault)
    world.close()
    assert gone(child) and not Path(folder).exists()
    assert world.reset(seed=1, task=TASK)[1].env_fault is None
    world.close()
    pool.close()


OWNER = """
import os, sys, time
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from r2v.envs.base import Task
from r2v.envs.worker.environment import WorkerEnvironment, WorldLimits
from r2v.envs.worker.pool import WorkerPool
from r2v.envs.worker.process import WorldProcess
pool = WorkerPool(WorldProcess(world="worlds:Counter", search=(Path(sys.argv[1]),)))
worlds = [WorkerEnvironment(pool, limits=WorldLimits(), tools=()) for _ in range(2)]
for world in worlds:
    world.reset(seed=1, task=Task(task_id="count", goal="count"))
    print(world.step("detach")[0], *world.step("where")[0].split(), flush=True)
worlds[0].close()
sys.stdin.read() if sys.argv[2] == "wait" else None
"""


@pytest.mark.parametrize("end", ["kill", "return"])
def test_nothing_outlives_its_owner(end: str) -> None:
    words = [sys.executable, "-c", OWNER, str(HERE), "wait" if end == "kill" else "go"]
    owner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdin is not None
    lines = [owner.stdout.readline().split() for _ in range(2)]
    if end == "kill":
        os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    for child, folder, process in lines:
        assert gone(int(child)) and gone(int(process))
        for _ in range(100):
            if not Path(folder).exists():
                break
            time.sleep(0.05)
        assert not Path(folder).exists()
