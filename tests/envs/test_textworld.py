"""TextWorld: games, planner and pipeline on third-party code. Skipped where textworld is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.cli.main import main
from r2v.envs.base import Task, load_benchmark
from r2v.errors import UsageError
from r2v.llm.types import Request
from r2v.policy.prompt_encoder import build_messages
from r2v.randomness import generator
from tests.seeds.workspace import REPOSITORY, standing_in
from tests.small_sizes import SMALL

pytest.importorskip("textworld", reason="textworld is not installed: pip install 'r2v[textworld]'")

from r2v.envs.textworld import TextWorld, call


@pytest.fixture(scope="module")
def textworld() -> TextWorld:
    return TextWorld(games=8)


def _commands(page: str) -> list[str]:
    return [line.removeprefix("command: ") for line in page.split("\n") if line.startswith("command: ")]


def _play(textworld: TextWorld, task: Task, noise: float) -> tuple[bool, list[str], list[str]]:
    """Play the expert, with a share of the commands replaced by random ones; return True if it wins, the actions and
    pages."""
    world, draw = textworld.make(), generator("textworld", task.task_id)
    seen, done = [world.reset(seed=1, task=task)[0]], list[str]()
    for _ in range(40):
        action = textworld.expert(Request(messages=build_messages(task.goal, seen, done), key=("k",)))
        if draw.random() < noise:
            action = call(draw.choice(_commands(seen[-1])))
        observation, _, terminated, _, info = world.step(action)
        seen, done = [*seen, observation], [*done, action]
        if terminated:
            return bool(info.success), done, seen
    return False, done, seen


def test_goals_are_unique_and_name_their_game(textworld: TextWorld) -> None:
    goals = [task.goal for task in textworld.tasks()]
    assert len(goals) == len(set(goals)) == 8
    assert goals[3].endswith('(game "4 4 8 3")')


def test_the_planner_wins_from_any_state(textworld: TextWorld) -> None:
    assert all(_play(textworld, task, 0.0)[0] for task in textworld.tasks())
    assert sum(_play(textworld, task, 0.4)[0] for task in textworld.tasks()) >= 7


def test_every_page_tells_the_objective_the_room_and_what_can_be_done(textworld: TextWorld) -> None:
    for task in textworld.tasks():
        won, actions, pages = _play(textworld, task, 0.0)
        assert won and len(actions) >= 4
        for page, action in zip(pages, actions, strict=False):
            assert page.startswith("objective: ") and "\nyou are in: " in page and "\nyou carry: " in page
            assert action in map(call, _commands(page))


def test_a_copy_goes_on_as_the_world_does(textworld: TextWorld) -> None:
    task = textworld.tasks()[3]
    world, other = textworld.make(), textworld.make()
    first, _ = world.reset(seed=1, task=task)
    world.step(call(_commands(first)[0]))
    kept = world.snapshot()
    ahead = [call("look"), call("inventory"), call("no such command")]
    shown = [world.step(action) for action in ahead]
    for again in (other, world):
        again.restore(kept)
        assert [again.step(action) for action in ahead] == shown


def test_what_is_not_on_the_page_changes_nothing(textworld: TextWorld) -> None:
    world = textworld.make()
    page, _ = world.reset(seed=1, task=textworld.tasks()[0])
    for action in ("go north", call("fly north"), '{"tool":"do"}', '{"tool":"look"}'):
        answer, *_, info = world.step(action)
        assert answer.startswith('{"error"') and info.is_error
    assert world.step(call("look"))[0] == page
    with pytest.raises(UsageError, match=r"env\.options\.quest"):
        load_benchmark("textworld", {"quest": 0})


def test_worlds_are_played_in_threads_as_they_are_one_by_one() -> None:
    tasks = TextWorld(games=24).tasks()[8:]

    def opened(task: Task) -> tuple[str, str]:
        world = TextWorld(games=1).make()
        return world.reset(seed=1, task=task)[0], world.step(call("look"))[0]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(opened, tasks))
    assert together == list(map(opened, tasks))


PROGRAM = """
from r2v.envs.textworld import TextWorld, call
benchmark = TextWorld(games=3)
world = benchmark.make()
for task in benchmark.tasks():
    print(world.reset(seed=1, task=task)[0], world.step(call("look"))[0])
"""


def test_another_process_and_hash_seed_make_the_same_games() -> None:
    def output(hash_seed: str) -> bytes:
        variables = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, env=variables).stdout

    assert output("1") == output("2") != b""


@pytest.mark.whole
def test_the_shipped_configuration_ends_well_in_ten_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = hub_model("llama", tmp_path / "model", [call("go north")])
    config = str(REPOSITORY / "configs/textworld/noisy.yaml")
    sizes = [*SMALL, "env.options.games=60", "policy.max_seq_len=2048"]
    with standing_in(tmp_path):
        assert main(["run", "--config", config, "--overrides", *sizes, f"policy.model_name={model}"]) == 0
        assert "stages_run=10/10" in "".join(capsys.readouterr())
        assert main(["verify-results", "results/textworld_noisy"]) == 0
        assert "replayed with the recorded results" in "".join(capsys.readouterr())
