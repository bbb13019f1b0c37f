"""The bundled instances, by official grading: the expert solves them, an agent that does nothing solves none."""

from __future__ import annotations

import json

import pytest

from r2v.data.split import assign
from r2v.envs.base import Task
from r2v.envs.swe import SweBench
from r2v.envs.swe.home import swebench_home
from r2v.envs.swe.recipes import line_of, recipe_of, recipes
from r2v.llm.types import Request
from r2v.wire.message import Message
from tests import trust
from tests.envs.swe.made import SUBMIT, bash, graded, walls

installed = pytest.mark.skipif(
    not (swebench_home() / "instances.jsonl").exists(),
    reason="no bundled instances: `r2v swebench install` (make test)",
)
IDS = [recipe.instance_id for recipe in recipes()]


def test_there_are_enough_of_enough_packages_and_kinds() -> None:
    made = recipes()
    assert len(set(IDS)) == len(made) >= 20
    assert len({recipe.package for recipe in made}) >= 6 and len({recipe.kind for recipe in made}) >= 5
    assert {recipe.split for recipe in made} == {"train", "calibration", "evaluation"}
    assert len({recipe.problem_statement for recipe in made}) == len(made)
    for recipe in made:
        assert recipe.FAIL_TO_PASS and recipe.PASS_TO_PASS and len(recipe.patch.splitlines()) <= 12, (
            "a recipe, no source"
        )
        assert recipe_of(json.loads(line_of(recipe))) == recipe


def play(benchmark: SweBench, task: Task) -> tuple[list[str], bool | None]:
    """Return the expert's actions and True if they solve the task."""
    world = benchmark.make()
    page, _ = world.reset(seed=1, task=task)
    messages = [Message(role="user", content=task.goal), Message(role="tool", content=page)]
    actions: list[str] = []
    while True:
        actions.append(benchmark.expert(Request(messages=tuple(messages), key=(1, task.task_id, len(actions), "llm"))))
        page, _, over, _, info = world.step(actions[-1])
        if over:
            world.close()
            return actions, info.success
        messages += [Message(role="assistant", content=actions[-1]), Message(role="tool", content=page)]


@walls
@graded
@installed
@pytest.mark.parametrize("name", trust.drawn(IDS, 1, "bundled SWE-bench instances"))
def test_the_expert_solves_it_and_a_change_of_nothing_does_not(name: str) -> None:
    benchmark = SweBench(instances=[name])
    (task,) = benchmark.tasks()
    assert assign([task])[task.task_id] == task.split
    actions, success = play(benchmark, task)
    assert success and len(actions) == 4 and actions[-1] == SUBMIT
    world = benchmark.make()
    world.reset(seed=1, task=task)
    world.step(bash("echo nothing > notes"))
    info = world.step(SUBMIT)[4]
    assert info.success is False and info.env_fault is None
    failing, passing = len(benchmark.instances[name].fail_to_pass), len(benchmark.instances[name].pass_to_pass)
    assert info.extra == {"grading": f"0 of {failing} failing tests pass, 0 of {passing} others broke"}
