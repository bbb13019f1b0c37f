"""BabyAI: environment, planner and pipeline on third-party code. Skipped where minigrid is not installed."""

from __future__ import annotations

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

pytest.importorskip("minigrid", reason="minigrid is not installed: pip install 'r2v[babyai]'")

from r2v.envs.babyai import BabyAI, call

TOOLS = ("left", "right", "forward", "pick", "drop", "toggle", "wait")


@pytest.fixture(scope="module")
def babyai() -> BabyAI:
    return BabyAI(instances=8)


def _play(babyai: BabyAI, task: Task, noise: float) -> bool:
    """True if the expert succeeds although a share of the steps is replaced by random ones."""
    world, draw = babyai.make(), generator("babyai", task.task_id)
    seen, done = [world.reset(seed=1, task=task)[0]], list[str]()
    for _ in range(60):
        action = babyai.expert(Request(messages=build_messages(task.goal, seen, done), key=("k",)))
        if draw.random() < noise:
            action = call(draw.choice(TOOLS))
        observation, _, terminated, truncated, info = world.step(action)
        seen, done = [*seen, observation], [*done, action]
        if terminated or truncated:
            return bool(info.success)
    return False


def test_goals_are_unique_and_name_their_layout(babyai: BabyAI) -> None:
    goals = [task.goal for task in babyai.tasks()]
    assert len(goals) == len(set(goals)) == 32
    assert goals[0].endswith('(layout "GoToLocal 0")')


def test_the_planner_ends_well_from_any_state(babyai: BabyAI) -> None:
    assert all(_play(babyai, task, 0.0) for task in babyai.tasks()[:12])
    assert sum(_play(babyai, task, 0.3) for task in babyai.tasks()[:12]) >= 10


def test_a_copy_goes_on_as_the_world_does(babyai: BabyAI) -> None:
    task = babyai.tasks()[3]
    world, other = babyai.make(), babyai.make()
    world.reset(seed=1, task=task)
    world.step(call("forward"))
    kept = world.snapshot()
    first = [world.step(call(tool)) for tool in TOOLS]
    for again in (other, world):
        again.restore(kept)
        assert [again.step(call(tool)) for tool in TOOLS] == first


def test_what_is_no_tool_changes_nothing_and_a_level_is_named() -> None:
    babyai = BabyAI(levels="GoToLocal", instances=1)
    world = babyai.make()
    before, _ = world.reset(seed=1, task=babyai.tasks()[0])
    answer, *_, info = world.step("go forward")
    assert answer.startswith('{"error"') and info.is_error
    assert world.step(call("wait"))[0].split("\n")[1:] == before.split("\n")[1:]
    with pytest.raises(UsageError, match="did you mean GoToLocal"):
        load_benchmark("babyai", {"levels": "GoToLocl"})


@pytest.mark.whole
def test_the_shipped_configuration_ends_well_in_ten_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = hub_model("llama", tmp_path / "model", [call(tool) for tool in TOOLS])
    config = str(REPOSITORY / "configs/babyai/noisy.yaml")
    sizes = [*SMALL, "env.options.levels=GoToLocal", "env.options.instances=60", "policy.max_seq_len=1536"]
    with standing_in(tmp_path):
        assert main(["run", "--config", config, "--overrides", *sizes, f"policy.model_name={model}"]) == 0
        assert "stages_run=10/10" in "".join(capsys.readouterr())
        assert main(["verify-results", "results/babyai_noisy"]) == 0
        assert "replayed with the recorded results" in "".join(capsys.readouterr())
