"""Renamed pages: calls reach the environment under its own names, twins equal the live ones, and every key matters."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from r2v.config import CategoryConfig, PerturbationsConfig
from r2v.data.episode import Episode
from r2v.envs.desk import Desk
from r2v.llm.types import Request
from r2v.perturb import wrap
from r2v.perturb.offline import Rejected, lost_support, twin_of
from r2v.perturb.renaming import Fields, Identifiers, identifiers
from r2v.perturb.schedule import Schedule
from r2v.wire.message import Message

Make = Callable[..., PerturbationsConfig]
Player = Callable[..., Episode]
TREE = "RootWebArea 'Shop'\n  [12] link 'Home', url='/id/12'\n  [13] button 'Buy 12'\n\t[a4] textbox 'Search'"
ROWS = (
    '{"page":"list","rows":"2"}\n{"row":"asset","name":"ann lee","id":"r1"}\n{"row":"asset","name":"bo ray","id":"r2"}'
)


def test_identifiers_stand_in_brackets_or_in_fields_of_that_name() -> None:
    assert identifiers(TREE) == ["12", "13", "a4"]
    assert identifiers(ROWS) == ["r1", "r2"]
    assert identifiers('{"record_id": "r7","idea":"r8"}\nsee [r9]') == ["r7"]


def test_only_identifiers_change_places_on_a_page() -> None:
    renaming = Identifiers({"12": "13", "13": "a4", "a4": "12"})
    assert renaming.for_agent(TREE) == TREE.replace("[12]", "[x]").replace("[a4]", "[12]").replace(
        "[13]", "[a4]"
    ).replace("[x]", "[13]")


@pytest.mark.parametrize(
    "action",
    ['{"tool":"click","bid":"12"}', '{"tool": "fill", "bid": "a4", "value": "12"}', "click('12')", '{"id":"99"}'],
)
def test_a_call_means_the_element_that_bears_the_name_and_its_values_stay(action: str) -> None:
    renaming = Identifiers({"12": "13", "13": "a4", "a4": "12"})
    assert renaming.for_world(renaming.for_agent(action)) == renaming.for_agent(renaming.for_world(action)) == action
    assert ("value" in action) <= ('"value": "12"' in renaming.for_world(action))
    assert json.loads(renaming.for_agent('{"tool":"click","bid":"12"}'))["bid"] == "13"


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_fields_change_names_one_to_one_and_back(share: float) -> None:
    renaming = Fields(("test",), share)
    names = [*(f"field{n}" for n in range(200)), *(f"field{n}_v2" for n in range(200)), "tool"]
    told = [renaming.name(name) for name in names]
    assert len(set(told)) == len(names) and [renaming.name(name) for name in told] == names
    assert renaming.name("tool") == "tool"
    assert 0.2 < sum(a != b for a, b in zip(names, told, strict=True)) / len(names) < 0.4 or share == 1.0
    assert renaming.for_world(renaming.for_agent(ROWS)) == ROWS


def test_schemas_are_told_by_the_names_that_hold() -> None:
    renaming = Fields(("test",), 1.0)
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    assert renaming.schema(schema) == {
        "type": "object",
        "properties": {"id_v2": {"type": "string"}},
        "required": ["id_v2"],
    }
    assert renaming.schema({}) == {}


class Reader:
    """A careful expert that notices renamed fields: it reads them by the old name, and calls tools by their current
    names."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def act(self, messages: list[Message], renaming: Fields) -> str:
        goal, *pages = messages
        read = (goal, *(Message(role=m.role, content=renaming.for_agent(m.content)) for m in pages))
        return renaming.for_agent(self._desk.expert(Request(messages=read, key=("reader",))))


@pytest.mark.parametrize("index", range(30))
def test_one_who_reads_the_new_names_solves_a_drifted_desk(index: int, desk: Desk, only: Make) -> None:
    hazard = only(schema_drift=CategoryConfig(prob=1.0, severity=0.6))
    world, task = wrap(desk.make(), desk, hazard, "noisy", 101), desk.tasks()[index]
    shown, info = world.reset(seed=1, task=task)
    old = {name for tool in desk.make().tool_specs() for name in tool.parameters["properties"]}
    new = {name for tool in world.tool_specs() for name in tool.parameters["properties"]}
    assert old != new
    (renaming,) = world._state.renamings
    assert isinstance(renaming, Fields)
    messages = [Message(role="user", content=task.goal), Message(role="tool", content=shown)]
    for _ in range(20):
        action = Reader(desk).act(messages, renaming)
        shown, _, over, _, info = world.step(action)
        messages += [Message(role="assistant", content=action), Message(role="tool", content=shown)]
        if over:
            break
    assert info.success


def test_a_drifted_world_does_not_know_the_old_names(desk: Desk, only: Make) -> None:
    world = wrap(desk.make(), desk, only(schema_drift=CategoryConfig(prob=1.0, severity=1.0)), "noisy", 101)
    task = desk.tasks()[0]
    world.reset(seed=1, task=task)
    old = json.dumps({"tool": "find", "kind": task.payload["kind"], "name": task.payload["name"]})
    assert world.step(old)[-1].is_error
    new = old.replace('"kind"', '"kind_v2"').replace('"name"', '"name_v2"')
    assert not world.step(new)[-1].is_error


def test_drift_lasts_from_its_first_hit_on(desk: Desk) -> None:
    schedule = Schedule(benchmark="desk", seed=7, categories={"schema_drift": CategoryConfig(prob=0.15, severity=0.5)})
    begins = set()
    for task in desk.tasks()[:60]:
        shown = [schedule.page(task, step, ROWS, None) for step in range(12)]
        hit = [bool(one.applied) for one in shown]
        assert hit == sorted(hit)
        assert len({one.text for one in shown if one.applied}) <= 1
        begins.add(hit.index(True) if True in hit else None)
    assert len(begins) > 4


@pytest.mark.parametrize("name", ["renumbered_dom", "schema_drift"])
def test_twins_of_renamed_pages_are_what_the_live_world_shows(name: str, desk: Desk, play: Player, only: Make) -> None:
    hazard = only(partial_observation=0.1, shuffled_dom=0.3, distractor=0.3, **{name: 0.4})
    schedule = Schedule(benchmark="desk", seed=101, surface=desk, categories=hazard.active("noisy"))
    respelled = 0
    for index in range(40):
        parent = play(index)
        twin = twin_of(parent, schedule, "annotate", max_steps=16)
        if not isinstance(twin, Episode):
            continue
        world = wrap(desk.make(), desk, hazard, "noisy", 101)
        shown, info = world.reset(seed=1, task=desk.tasks()[index])
        for before, step in zip(parent.steps, twin.steps, strict=True):
            assert (shown, info.perturbations) == (step.observation.raw_text, step.perturbations)
            respelled += step.action != before.action
            shown, *_, info = world.step(step.action.raw_text)
        assert info.success is True
        assert lost_support(parent, twin) == []
    assert respelled > 10


def test_wrong_values_are_never_written_into_a_stored_episode(desk: Desk, play: Player, only: Make) -> None:
    hazard = only(value_corruption=0.5).active("noisy")
    schedule = Schedule(benchmark="desk", seed=101, surface=desk, categories=hazard)
    assert twin_of(play(0), schedule, "annotate", max_steps=16) is Rejected.UNTOUCHED
    assert twin_of(play(0), schedule, "insert", max_steps=16) is Rejected.UNTOUCHED


def test_snapshots_keep_the_names_that_hold(desk: Desk, only: Make) -> None:
    hazard = only(renumbered_dom=1.0, schema_drift=0.5)
    world, task = wrap(desk.make(), desk, hazard, "noisy", 101), desk.tasks()[0]
    world.reset(seed=1, task=task)
    find = world.action_for_agent(
        json.dumps({"tool": "find", "kind": task.payload["kind"], "name": task.payload["name"]})
    )
    world.step(find)
    state, spelled = world.snapshot(), world.action_for_agent('{"tool":"refresh"}')
    ahead = world.step(spelled)
    other = wrap(desk.make(), desk, hazard, "noisy", 101)
    other.restore(state)
    assert other.step(spelled) == ahead
