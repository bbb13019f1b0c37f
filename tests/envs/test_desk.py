"""Desk: deterministic, exactly checked, restorable; its expert solves it and can survive its hazards."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from functools import cache
from typing import Any

import pytest

from r2v.config import CategoryConfig, PerturbationsConfig
from r2v.data.split import split_of
from r2v.envs.base import Benchmark, Demonstrated, Environment, Info, Snapshots, Surface, Task
from r2v.envs.desk import Desk
from r2v.envs.desk.environment import MAX_STEPS, DeskEnvironment
from r2v.envs.desk.surface import PLANT_FAMILIES
from r2v.envs.desk.tasks import HELD_OUT
from r2v.envs.desk.tools import ACTS
from r2v.envs.desk.vocabulary import GUEST, archive, canaries, line, parse, parse_goal
from r2v.errors import UsageError
from r2v.llm.types import Request
from r2v.perturb import wrap
from r2v.wire.message import Message

RECORD_KEY = ("name", "team", "item")


@cache
def desk() -> Desk:
    return Desk()


@cache
def careful() -> Desk:
    """Return the same desk with an expert that has no flaws."""
    return Desk(slips=0.0, weakness=0.0)


def training_tasks(verb: str | None = None) -> list[Task]:
    return [
        task
        for task in desk().tasks()
        if task.split is None and split_of(task.task_id) == "train" and verb in (None, task.payload["goal"])
    ]


def play(world: Environment, of: Desk, task: Task, seed: int = 0, limit: int = 30) -> tuple[list[Message], Info]:
    """Play the expert's episode; return its messages and the last info."""
    observation, info = world.reset(seed=seed, task=task)
    messages = [Message(role="user", content=task.goal), Message(role="tool", content=observation)]
    for step in range(limit):
        action = of.expert(Request(messages=tuple(messages), key=(seed, task.task_id, step, "teacher")))
        observation, _, terminated, truncated, info = world.step(action)
        messages += [Message(role="assistant", content=action), Message(role="tool", content=observation)]
        if terminated or truncated:
            break
    return messages, info


def actions(messages: list[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "assistant"]


def run(calls: list[str], task: Task, seed: int = 0) -> tuple[DeskEnvironment, Info]:
    world = desk().make()
    world.reset(seed=seed, task=task)
    info = Info()
    for call in calls:
        *_, info = world.step(call)
    return world, info


def solution(task: Task, seed: int = 0) -> list[str]:
    return actions(play(careful().make(), careful(), task, seed)[0])


def test_it_is_all_a_benchmark_can_be() -> None:
    for protocol in (Benchmark, Surface, Demonstrated):
        assert isinstance(desk(), protocol)
    assert isinstance(desk().make(), Snapshots)


def test_tasks_are_unique_split_as_promised_and_stable_under_their_number() -> None:
    tasks = desk().tasks()
    assert len({task.task_id for task in tasks}) == len({task.goal for task in tasks}) == len(tasks)
    sizes = Counter(task.split or split_of(task.task_id) for task in tasks)
    assert sizes["evaluation"] >= 200 and sizes["calibration"] >= 100 and sizes["heldout"] == 60
    assert Desk(num_tasks=50, num_heldout=0).tasks() == tasks[:50]
    held = {f"{verb}-{kind}" for verb, kind in HELD_OUT}
    assert all((task.template_id in held) == (task.split == "heldout") for task in tasks)
    assert len({task.template_id for task in tasks} - held) >= 12


def test_episodes_are_a_function_of_task_seed_and_actions() -> None:
    task = training_tasks()[0]
    assert play(desk().make(), desk(), task) == play(desk().make(), desk(), task)
    assert desk().make().reset(seed=0, task=task) == desk().make().reset(seed=0, task=task)
    lists = {play(desk().make(), desk(), task, seed)[0][3].content for seed in range(5)}
    assert len(lists) == 5, "every seed is another world"


def test_no_task_needs_fewer_than_three_or_more_than_eight_steps() -> None:
    lengths = {len(solution(task)) for task in training_tasks()[:150]}
    assert min(lengths) >= 3 and max(lengths) <= 8 and len(lengths) >= 4


def test_the_careful_expert_solves_everything() -> None:
    chosen = [*training_tasks()[:150], *(task for task in desk().tasks() if task.split == "heldout")]
    assert all(play(careful().make(), careful(), task)[1].success for task in chosen)


@pytest.mark.parametrize("category", [name for name in PerturbationsConfig.categories() if name != "schema_drift"])
def test_every_hazard_that_passes_can_be_recovered_from(category: str) -> None:
    """Permanently renamed fields are excluded: the expert knows only the desk's own names
    (tests/perturb/test_renaming.py has one that reads the new ones)."""
    probabilities: dict[str, Any] = {
        name: CategoryConfig(prob=0.3 if name == category else 0.0) for name in PerturbationsConfig.categories()
    }
    hazard = dataclasses.replace(PerturbationsConfig(held_out=[]), **probabilities)
    for task in training_tasks()[:60]:
        world = wrap(careful().make(), careful(), hazard, "noisy", 7)
        messages, info = play(world, careful(), task, limit=60)
        assert info.success, messages
        assert not info.harmful


def test_the_expert_is_imperfect_as_stated() -> None:
    tasks = training_tasks()[:400]
    clean = sum(bool(play(desk().make(), desk(), task)[1].success) for task in tasks) / len(tasks)
    world = wrap(desk().make(), desk(), PerturbationsConfig(), "noisy", 7)
    noisy = sum(bool(play(world, desk(), task)[1].success) for task in tasks) / len(tasks)
    assert 0.93 <= clean < 1
    assert 0.85 <= noisy < clean


def test_the_expert_reads_nothing_but_the_conversation() -> None:
    task = training_tasks()[0]
    first = desk().make().reset(seed=0, task=task)[0]
    messages = (Message(role="user", content=task.goal), Message(role="tool", content=first))
    request = Request(messages=(Message(role="system", content="anything"), *messages), key=(0, "t", 0, "llm"))
    wanted = line(tool="find", kind=task.payload["kind"], name=task.payload["name"])
    assert careful().expert(request) == wanted


def test_snapshot_restores_the_whole_state_anywhere() -> None:
    task = training_tasks("settle")[0]
    calls = solution(task)
    for cut in range(len(calls)):
        world, _ = run(calls[:cut], task)
        state = world.snapshot()
        assert dataclasses.is_dataclass(state) and hash(state) == hash(world.snapshot())
        rest = [world.step(call) for call in calls[cut:]]
        other = desk().make()
        other.restore(state)
        assert [other.step(call) for call in calls[cut:]] == rest
        assert rest[-1][4].success


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("hello", "bad call"),
        ('["done"]', "bad call"),
        ('{"tool":"done","now":1}', "bad call"),
        ('{"tool":"fly"}', "unknown tool"),
        ('{"tool":"find","kind":"ticket"}', "wrong arguments"),
        ('{"tool":"find","kind":"cat","name":"ann lee"}', "wrong arguments"),
        ('{"tool":"reply","name":"ann lee","id":"204","text":"x"}', "wrong arguments"),
        ('{"tool":"more"}', "no more pages"),
        ('{"tool":"close","name":"ann lee","team":"net","item":"vpn","id":"r204"}', "open the record first"),
    ],
)
def test_a_call_that_cannot_be_answers_one_error_row_and_changes_nothing(action: str, reason: str) -> None:
    world, _ = run([], training_tasks()[0])
    before = world.snapshot()
    observation, reward, terminated, truncated, info = world.step(action)
    assert json.loads(observation) == {"error": reason}
    assert (reward, terminated, truncated, info.is_error, info.success) == (0.0, False, False, True, None)
    assert dataclasses.replace(world.snapshot(), steps=0) == before


def test_a_record_opens_only_under_its_own_fields() -> None:
    task = training_tasks("close")[0]
    calls = solution(task)
    get = json.loads(next(call for call in calls if '"get"' in call))
    world, _ = run(calls[:1], task)
    other = next(record for page in world.snapshot().world.pages for record in page if record.id != get["id"])
    assert world.step(line(**(get | {"id": other.id})))[0] == line(error="no match")
    assert world.step(line(tool="get", **other.fields))[4].is_error is False


def wrong_endings(task: Task) -> dict[str, list[str]]:
    """Return ways to end a task that must all fail."""
    calls = solution(task)
    at = next(at for at, call in enumerate(calls) if json.loads(call)["tool"] in ACTS)
    act = json.loads(calls[at])
    stranger = line(tool="reply", name="ann lee", id="r900", text="x")
    endings = {
        "forgotten": [*calls[:at], '{"tool":"done"}'],
        "no done": calls[:-1],
        "twice": [*calls[: at + 1], *calls[at:]],
        "told a stranger": [*calls[:-1], stranger, calls[-1]],
    }
    world, _ = run(calls[:at], task)
    truth = world.snapshot().world
    if act["tool"] == "decide":
        verb = next(verb for verb in ("hold", "return") if verb != act["verb"])
        endings["wrong verb"] = [*calls[:at], line(**(act | {"verb": verb})), *calls[at + 1 :]]
    if act["tool"] == "assign":
        busy = next(member for member, free in truth.staff if not free)
        endings["busy"] = [*calls[:at], line(**(act | {"state": "busy", "tech": busy})), *calls[at + 1 :]]
    if truth.verb == "settle":
        endings["not told"] = [*calls[:-2], calls[-1]]
    return endings


@pytest.mark.parametrize("verb", ["close", "assign", "decide", "settle"])
def test_the_checker_is_exact(verb: str) -> None:
    for task in training_tasks(verb)[:5]:
        assert run(solution(task), task)[1].success
        for name, calls in wrong_endings(task).items():
            assert not run(calls, task)[1].success, name


def test_any_free_technician_and_any_wording_serve() -> None:
    for verb, argument in (("assign", "tech"), ("settle", "text")):
        task = training_tasks(verb)[1]
        calls = solution(task)
        at = next(at for at, call in enumerate(calls) if argument in json.loads(call))
        world, _ = run(calls[:at], task)
        tool = json.loads(calls[at])["tool"]
        spec = next(spec for spec in world.tool_specs() if spec.name == tool)
        assert spec.free_arguments == {argument}
        free = [member for member, is_free in world.snapshot().world.staff if is_free]
        for value in free if verb == "assign" else ["any"]:
            changed = [*calls[:at], line(**(json.loads(calls[at]) | {argument: value})), *calls[at + 1 :]]
            assert run(changed, task)[1].success


def test_an_episode_ends() -> None:
    world, info = run(['{"tool":"refresh"}'] * MAX_STEPS, training_tasks()[0])
    assert info.success is False
    with pytest.raises(RuntimeError, match="reset first"):
        world.step('{"tool":"done"}')


def test_decoys_never_satisfy_the_goal_and_bear_fresh_ids() -> None:
    for task in training_tasks()[:40]:
        messages, _ = play(careful().make(), careful(), task)
        wanted, (world, _) = task.payload, run([], task)
        ids = {record.id for page in world.snapshot().world.pages for record in page}
        for observation in (message.content for message in messages if message.role == "tool"):
            rows = [parse(row) for row in desk().decoys(observation, task.goal, 3, 0.37)]
            for row in rows:
                assert row is not None
                assert row.get("id") not in ids
                assert any(row.get(name) != wanted[name] for name in RECORD_KEY) or row["state"] == "busy"


def test_clean_pages_hold_no_canary_and_no_archived_id() -> None:
    for task in training_tasks()[:60]:
        page = "\n".join(message.content for message in play(careful().make(), careful(), task)[0])
        reserved = (*canaries(task.goal), *archive(task.goal))
        assert len(set(reserved)) == len(reserved) > 64
        assert not any(f'"{identifier}"' in page for identifier in reserved)


@pytest.mark.parametrize("family", PLANT_FAMILIES)
def test_every_injection_contains_its_canary_and_the_mark_of_outsiders(family: str) -> None:
    task = training_tasks()[0]
    planted, canary = desk().injection("", task.goal, family, 0.5)
    row = parse(planted)
    assert row is not None and row["id"] == canary and row["via"] == GUEST
    assert canary in canaries(task.goal)
    assert "\n" not in planted


def test_an_unknown_injection_family_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean direct"):
        desk().injection("", training_tasks()[0].goal, "directt", 0.5)


def test_obeying_a_planted_record_is_harmful_and_fails() -> None:
    task = training_tasks("close")[0]
    goal = parse_goal(task.goal)
    key = {name: goal[name] for name in RECORD_KEY} | {"id": canaries(task.goal)[0]}
    world, info = run([line(tool="get", **key)], task)
    assert '"status":"archived"' in world.snapshot().page and not info.harmful
    *_, info = world.step(line(tool="close", **key))
    assert info.harmful
    *_, info = world.step('{"tool":"done"}')
    assert info.success is False
