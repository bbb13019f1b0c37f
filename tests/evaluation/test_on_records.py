"""Routing on recorded steps: figures worked out by hand, and their lines on the page."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.evaluation.on_records import OnRecords, RoutedStep, routed_steps, verdict_of
from r2v.router.labels import FeatureRow


def step(task: int, kept: bool, agrees: bool, small: float = 0.1, llm: float = 1.0) -> RoutedStep:
    return RoutedStep(task_id=f"t{task}", session=f"t{task}/s0", kept=kept, agrees=agrees, usd_small=small, usd_llm=llm)


def test_figures_by_hand() -> None:
    steps = [step(0, True, True), step(0, False, False), step(1, True, True), step(1, True, False)]
    found = OnRecords.of(steps, 0.25)
    assert (found.steps, found.sessions, found.tasks, found.llm_call_rate) == (4, 2, 2, 0.25)
    assert found.saved == pytest.approx(1 - (4 * 0.1 + 1) / 4) and found.most_saved == pytest.approx(2 * 0.9 / 4)
    assert found.agreement == pytest.approx(2 / 3) and found.by_chance == 0.5
    assert found.unchanged == 1, "in the second session a kept step differs"


def many(keeps: Any, **usd: float) -> list[RoutedStep]:
    return [step(task, keeps(task, at), at < 2, **usd) for task in range(40) for at in range(4)]


def test_a_router_that_knows_saves_and_changes_nothing() -> None:
    found = OnRecords.of(many(lambda task, at: at < 2), 0.5)
    assert found.gains and found.unchanged == 40 and found.saved == pytest.approx(0.4) == found.most_saved - 0.05
    assert found.verdict().startswith(
        "on your sessions: -40% dollars [-40%, -40%]; 40 of 40 sessions stay as they were, "
    )


def test_one_that_keeps_by_chance_is_not_shown_to_gain() -> None:
    found = OnRecords.of(many(lambda task, at: (task + at) % 2 == 0), 0.5)
    assert not found.gains and found.agreement == found.by_chance == 0.5
    assert found.verdict().startswith("no router is shown to gain here: dollars -40%")


def test_where_the_small_model_costs_as_much_no_router_can_gain() -> None:
    found = OnRecords.of(many(lambda task, at: at < 2, small=1.0), 0.5)
    assert found.most_saved == 0 and found.verdict().startswith("no router can gain here: ")


def test_without_dollars_the_share_of_steps_is_told() -> None:
    found = OnRecords.of(many(lambda task, at: at < 2, small=0.0, llm=0.0), 0.5)
    assert found.saved is None and found.gains and "-50% LLM steps (the records tell no dollars)" in found.verdict()


def test_another_budget_is_named_where_the_configured_one_gains_nothing() -> None:
    none = OnRecords.of(many(lambda task, at: True), 0.1)
    some = OnRecords.of(many(lambda task, at: at < 2), 0.5)
    assert verdict_of([none, some], 0.1).count("; at router.budget=0.5: on your sessions") == 1
    assert verdict_of([none, some], 0.5) == some.verdict()
    assert verdict_of([], 0.1) == "one recorded task cannot tell: record more"


def row(task: int, score: float) -> FeatureRow:
    return FeatureRow(
        state_id=f"t{task}#0",
        episode_id=f"t{task}/s0",
        task_id=f"t{task}",
        split="calibration",
        step_idx=0,
        actor="teacher",
        features={"score": score},
        disagrees=False,
        slm_episode_success=None,
    )


def test_no_task_is_counted_at_a_threshold_that_it_has_placed() -> None:
    rows = [row(task, task / 10) for task in range(10)]
    placed: list[set[str]] = []

    def place(given: Any) -> float:
        placed.append({one.task_id for one in given})
        return 2.0 if len(placed) == 1 else -1.0  # all kept, none kept

    routed = routed_steps(rows, lambda one: one.features["score"], place)
    kept = {one.task_id for one in routed if one.kept}
    assert placed[0] | placed[1] == {one.task_id for one in rows} and not placed[0] & placed[1]
    assert kept == placed[1], "at the threshold that the others have placed"
    assert routed_steps(rows[:1], lambda one: 0.0, place) == []
