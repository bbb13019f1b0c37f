"""Draws: keyed, coupled, of the configured frequency, and blind to everything but their key."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from r2v.config import (
    INJECTION_FAMILIES,
    MODES,
    WITHOUT_SEVERITY,
    CategoryConfig,
    PerturbationMode,
    PerturbationsConfig,
)
from r2v.data.episode import AppliedPerturbation
from r2v.envs.base import Task
from r2v.errors import UsageError
from r2v.perturb import call_failed, perturbation_type
from r2v.perturb.category import Category, Change, category
from r2v.perturb.renaming import Fields
from r2v.perturb.schedule import Schedule
from r2v.wire.message import ToolSpec

NAMES = ",".join(f'"{name}":"some"' for name in "abcdefghijkl")
PAGE = f"header {{{NAMES}}}\n[11] row 11\n[22] row 22\n[33] row 33"
ON_PAGES = (
    "stale_observation",
    "partial_observation",
    "shuffled_dom",
    "renumbered_dom",
    "distractor",
    "prompt_injection",
    "schema_drift",
    "value_corruption",
    "latency",
)
ON_CALLS = ("tool_error", "tool_timeout")
ALL = PerturbationsConfig.categories()


def _schedule(
    seed: int = 101, held_out_families: tuple[str, ...] = (), severity: float = 0.0, **probs: float
) -> Schedule:
    categories = {name: CategoryConfig(prob=prob, severity=severity) for name, prob in probs.items()}
    return Schedule(benchmark="desk", categories=categories, seed=seed, held_out_families=held_out_families)


def _task(number: int = 0) -> Task:
    return Task(task_id=f"t{number}", goal="find row 44 for me")


def _hits(schedule: Schedule, name: str, tasks: int, steps: int) -> set[tuple[int, int]]:
    """Return the (task, step) pairs that one category hits, on pages it could hit."""
    found = set()
    for number in range(tasks):
        for step in range(1, steps + 1):
            if name in ON_CALLS:
                hit = schedule.call(_task(number), ["get"] * step) is not None
            else:
                page = schedule.page(_task(number), step, PAGE, "before")
                hit = name in [one.category for one in page.applied]
            if hit:
                found.add((number, step))
    return found


@pytest.mark.parametrize("name", ON_PAGES + ON_CALLS)
def test_a_higher_probability_only_adds_hits(name: str) -> None:
    rare = _hits(_schedule(severity=0.5, **{name: 0.1}), name, 40, 10)
    often = _hits(_schedule(severity=0.5, **{name: 0.2}), name, 40, 10)
    assert rare < often


@pytest.mark.parametrize("name", ON_PAGES + ON_CALLS)
def test_probability_one_hits_every_eligible_step_once(name: str) -> None:
    schedule = _schedule(severity=0.5, **{name: 1.0})
    for step in range(1, 30):
        outcome = schedule.call(_task(), ["get"] * step) or schedule.page(_task(), step, PAGE, "before")
        assert [one.category for one in outcome.applied] == [name]


RICH = '{"page":"list","rows":"7"}\n' + "\n".join(f'{{"row":"{n}","name":"n{n}","id":"r{n}"}}' for n in range(7))


def _played(modes: dict[str, PerturbationMode] | None = None, **given: CategoryConfig) -> list[str]:
    """Return a schedule's versions of the goals, calls and pages of some episodes, and the delays."""
    schedule, shown = Schedule(benchmark="desk", categories=given, seed=101, modes=modes or {}), []
    for task in [Task(task_id=f"t{number}", goal="find a row for me") for number in range(12)]:
        shown.append(schedule.goal(task))
        for step in range(1, 12):
            shown.append(schedule.call(task, ["get"] * step) or schedule.page(task, step, RICH, "before"))
    return [f"{one.text} {one.seconds}" for one in shown]


def _refused(name: str, mode: PerturbationMode, **given: Any) -> bool:
    """True if the configuration refuses a category in this mode."""
    try:
        PerturbationsConfig(modes={name: mode}, **{name: CategoryConfig(**given)})
    except UsageError as error:
        assert f"perturbations.{name}." in str(error) or "perturbations.modes" in str(error)
        return True
    return False


@pytest.mark.parametrize("name", PerturbationsConfig.categories())
@pytest.mark.parametrize("mode", get_args(PerturbationMode))
def test_another_mode_of_a_category_changes_what_is_played_or_is_refused(name: str, mode: PerturbationMode) -> None:
    allowed = MODES.get(name, ())
    assert _refused(name, mode, prob=0.2) == (mode not in allowed)
    some = _played(**{name: CategoryConfig(prob=0.2)})
    if mode in allowed:
        other = _played({name: mode}, **{name: CategoryConfig(prob=0.2)})
        assert (other != some) == (mode != allowed[0] == category(name).mode)
        lasting = name in ON_CALLS and mode == "explicit_permanent"
        assert _refused(name, mode, prob=0.2, severity=0.3) == lasting
        if not lasting:
            assert other != _played({name: mode}, **{name: CategoryConfig(prob=0.2, severity=0.9)}), "severity"


@pytest.mark.parametrize("mode, name", [(mode, name) for name, modes in MODES.items() for mode in modes])
def test_a_hit_records_the_mode_it_was_made_in(mode: PerturbationMode, name: str) -> None:
    schedule = Schedule(benchmark="desk", categories={name: CategoryConfig(prob=1.0)}, seed=101, modes={name: mode})
    outcome = schedule.call(_task(), ["get"]) or schedule.page(_task(), 1, RICH, "before")
    assert [one.mode for one in outcome.applied] == [mode]


DRAWN = {
    "tool_error": "d1064ca4b121196f",
    "tool_timeout": "5fe0611d22aa4751",
    "stale_observation": "88174a1cc6e06045",
    "partial_observation": "129222623d382036",
    "shuffled_dom": "b70226ed950176f2",
    "renumbered_dom": "18720dc96f78e772",
    "distractor": "bd9d45a7d12be91f",
    "prompt_injection": "28b312178140f091",
    "schema_drift": "bbbeee6f9c305305",
    "value_corruption": "035519a9afe081f2",
    "goal_typo": "f06909717f0fd97d",
    "latency": "b4e4a203ae1defa0",
}
"""Hashes of each category's draws as they were first made."""


@pytest.mark.parametrize("name", PerturbationsConfig.categories())
def test_by_default_a_category_draws_what_it_always_drew(name: str) -> None:
    drawn = hashlib.sha256()
    for seed in (101, 901, 902):
        schedule = Schedule(benchmark="desk", seed=seed, categories={name: CategoryConfig(prob=0.4, severity=0.4)})
        for task in [Task(task_id=f"t{number}", goal="find a row for me") for number in range(8)]:
            shown = [schedule.goal(task)]
            for step in range(1, 9):
                failure = schedule.call(task, ["get"] * step)
                shown.append(failure or schedule.page(task, step, RICH, "before"))
            record = [(one.text, one.seconds, [_as_tuple(mark) for mark in one.applied]) for one in shown]
            drawn.update(repr(record).encode())
    assert drawn.hexdigest()[:16] == DRAWN[name]


def _as_tuple(mark: AppliedPerturbation) -> tuple[Any, ...]:
    return mark.category, mark.mode, mark.params, mark.canary


PAGES = (
    "only one line",
    "list\nrow 1\nrow 2",
    "list\nsame row\nsame row",
    "list\n[1] a\n[2] a\n[3] b",
    '{"page":"list"}\n{"row":"1","name":"ann","id":"r1"}\n{"row":"2","name":"bob","id":"r2"}',
    "weight 12.5 kg of 2026-02-27\nno id",
    RICH,
)
GOALS = ("open book 7", "aa oo", "\u00e9\u00e9 see all", 'call it "all" now')
TOOLS = (ToolSpec(name="get", description="", parameters={"properties": {"id": {}, "name": {}}, "required": ["id"]}),)


@pytest.mark.parametrize("name, mode", [(name, mode) for name in ALL for mode in MODES.get(name, (None,))])
@pytest.mark.parametrize("severity", [0.0, 0.2, 0.5, 1.0])
def test_what_is_recorded_as_a_hit_changed_something(name: str, mode: PerturbationMode | None, severity: float) -> None:
    if name in ON_CALLS and mode == "explicit_permanent":
        severity = 0.5
    hits = 0
    for seed in range(25):
        hazard = {name: CategoryConfig(prob=1.0, severity=severity)}
        schedule = Schedule(benchmark="desk", seed=seed, categories=hazard, modes={name: mode} if mode else {})
        for goal in GOALS:
            task = Task(task_id="t", goal=goal)
            told = schedule.goal(task)
            assert bool(told.applied) == (told.text != goal)
            assert told.text != goal or name != "goal_typo" or severity == 0
            hits += bool(told.applied)
        for page in PAGES:
            failure = schedule.call(_task(), ["get"])
            shown = failure or schedule.page(_task(), 1, page, "before", TOOLS)
            renamed = any(
                isinstance(one, Fields) and one.schema(TOOLS[0].parameters) != TOOLS[0].parameters
                for one in shown.renamings
            )
            changed = failure is not None or shown.text != page or shown.seconds > 0 or renamed
            assert bool(shown.applied) == changed
            hits += bool(shown.applied)
    assert hits or severity == 0


@pytest.mark.parametrize("name", PerturbationsConfig.categories())
def test_every_key_of_a_category_changes_what_is_played(name: str) -> None:
    some = _played(**{name: CategoryConfig(prob=0.2, severity=0.3)})
    assert some != _played()
    assert some != _played(**{name: CategoryConfig(prob=0.6, severity=0.3)}), "prob"
    assert _played(**{name: CategoryConfig(prob=0.0, severity=0.3)}) == _played(), "off"
    assert (some != _played(**{name: CategoryConfig(prob=0.2, severity=0.9)})) == (name not in WITHOUT_SEVERITY)


def test_the_rate_is_the_one_asked_for() -> None:
    hits = _hits(_schedule(seed=101, distractor=0.2), "distractor", 1000, 10)
    assert 1894 <= len(hits) <= 2106


def test_a_failure_lasts_twice_as_often_as_severity_says() -> None:
    single = _hits(_schedule(tool_error=0.2, severity=0.0), "tool_error", 1000, 10)
    double = _hits(_schedule(tool_error=0.2, severity=1.0), "tool_error", 1000, 10)
    assert double == single | {(task, step + 1) for task, step in single if step < 10}


def test_categories_draw_independently() -> None:
    alone = _hits(_schedule(distractor=0.3), "distractor", 50, 10)
    among = _hits(_schedule(distractor=0.3, partial_observation=0.4, prompt_injection=0.5), "distractor", 50, 10)
    assert alone == among


def test_seed_task_step_and_benchmark_all_matter() -> None:
    base = _hits(_schedule(distractor=0.5), "distractor", 10, 10)
    assert _hits(_schedule(seed=102, distractor=0.5), "distractor", 10, 10) != base
    assert len({frozenset(s for t, s in base if t == number) for number in range(10)}) > 5


def test_only_one_failure_answers_a_call() -> None:
    schedule = _schedule(tool_error=1.0, tool_timeout=1.0, stale_observation=1.0)
    failure = schedule.call(_task(), ["get"] * 3)
    assert failure is not None
    assert [one.category for one in failure.applied] == ["tool_error"]


OTHER = Category(
    kind="replace",
    group="partial_observability",
    alter=lambda scene: Change(text=scene.text.replace("header", "other")),
)


def test_only_one_category_replaces_a_page_and_edits_come_after_it() -> None:
    other = f"{__name__}:OTHER"
    both = _schedule(distractor=1.0, stale_observation=0.5, **{other: 1.0})
    pages = [both.page(_task(), step, PAGE, PAGE.replace("header", "before")) for step in range(1, 30)]
    hits = [[one.category for one in page.applied] for page in pages]
    assert all(
        page.text.startswith("before" if "stale_observation" in hit else "other")
        for page, hit in zip(pages, hits, strict=True)
    )
    assert {tuple(hit) for hit in hits} == {("stale_observation", "distractor"), (other, "distractor")}


def test_held_out_families_never_occur_and_shift_brings_them_back() -> None:
    held = ("direct", "encoded")

    def families(schedule: Schedule) -> set[str]:
        return {one.params["family"] for step in range(200) for one in schedule.page(_task(), step, PAGE, None).applied}

    assert families(_schedule(prompt_injection=1.0)) == set(INJECTION_FAMILIES)
    assert families(_schedule(prompt_injection=1.0, held_out_families=held)) == set(INJECTION_FAMILIES) - set(held)


def test_one_family_is_left() -> None:
    with pytest.raises(UsageError, match="every family is held out"):
        _schedule(prompt_injection=0.1, held_out_families=INJECTION_FAMILIES)


def test_every_configured_category_exists_and_is_filed() -> None:
    for name in PerturbationsConfig.categories():
        applied = [AppliedPerturbation(category=name)]
        assert perturbation_type(applied) == category(name).group != "none"
        assert call_failed(applied) == (name in ON_CALLS)


def test_perturbation_types() -> None:
    def filed(*names: str) -> str:
        return perturbation_type([AppliedPerturbation(category=name) for name in names])

    assert filed() == "none"
    assert filed("tool_error", "tool_timeout") == "tool_flakiness"
    assert filed("stale_observation", "partial_observation") == "partial_observability"
    assert filed("distractor", "distractor") == "distractor"
    assert filed("prompt_injection") == "prompt_injection"
    assert filed("tool_error", "distractor") == "composite"


PROGRAM = """
from r2v.config import INJECTION_FAMILIES, CategoryConfig, PerturbationsConfig
from r2v.envs.base import Task
from r2v.perturb.schedule import Schedule
schedule = Schedule(benchmark="desk", seed=7, categories={
    name: CategoryConfig(prob=0.5) for name in PerturbationsConfig.categories()})
task = Task(task_id="t", goal="please look for row 44")
print(schedule.goal(task))
for step in range(20):
    print(schedule.call(task, ["get"] * step), schedule.page(task, step, "header\\nrow 1\\nrow 2\\nrow 3", "before"))
"""


def test_another_process_and_hash_seed_draw_the_same() -> None:
    def output(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        return hashlib.sha256(done.stdout.encode()).hexdigest()

    assert output("1") == output("2")
