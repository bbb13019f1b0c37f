"""A policy's actions in a recorded teacher's states: on the chain, where they are known at every door."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from r2v.config import InferenceConfig
from r2v.data.episode import COPIED, Episode, StepLabel
from r2v.envs.base import tools_of
from r2v.envs.chain import ChainBenchmark, right_action
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.stage_rollouts.teacher_states import agreement_cell, left_out_tasks, split_of, views_of
from r2v.rollout.work_queue import measured
from r2v.router.labels import FeatureRow
from tests.chains import Stage, chain_stage, specs
from tests.rollouts import MemoryPlayer

TASKS = [f"task-{index}" for index in range(40)]


def asked(on: Stage, episodes: list[Episode], **options: object) -> list[FeatureRow]:
    splits = {episode.metadata.task_id: "train" for episode in episodes}
    by_id = {episode.episode_id: episode for episode in episodes}
    extractor, tools = FeatureExtractor(InferenceConfig()), tools_of(on.world.benchmark)
    cell = agreement_cell(by_id, splits, on.small, extractor, tools, max_steps=10, **options)  # type: ignore[arg-type]
    return [row for rows in measured(cell, MemoryPlayer(on.waves)) for row in rows]


def test_a_label_says_where_the_policy_would_open_another_door_than_its_teacher() -> None:
    chain = ChainBenchmark(num_tasks=12)
    on = chain_stage(chain, (0.7, None), 1.0)
    teacher, own = (on.play(specs(chain, 12), actor) for actor in (on.large, on.small))
    rows = asked(on, teacher)
    wrong = [
        step.action.raw_text != right_action(step.observation.raw_text) for episode in own for step in episode.steps
    ]
    assert [row.disagrees for row in rows] == wrong and 0 < sum(wrong) < len(wrong)
    assert {row.actor for row in rows} == {"teacher"} and {row.split for row in rows} == {"train"}
    assert all(row.gain is None and row.slm_episode_success is None for row in rows)


def test_features_are_those_of_a_policy_that_came_there_itself() -> None:
    """On the teacher's own path the perfect policy meets the states of its roll-out, with the same features."""
    chain = ChainBenchmark(num_tasks=4)
    on = chain_stage(chain, (1.0, None), 1.0)
    teacher = on.play(specs(chain, 4), on.large)
    for episode in teacher:
        views = [view for view, _ in views_of(episode, tools_of(chain), 10)]
        assert [view.step for view in views] == list(range(len(episode.steps)))
        for before, after in pairwise(views):
            assert after.messages[: len(before.messages)] == before.messages and after.llm_calls == 0
    assert not any(row.disagrees for row in asked(on, teacher))


def test_steps_that_a_log_copies_and_steps_that_do_not_fit_have_no_row() -> None:
    chain = ChainBenchmark(num_tasks=2)
    on = chain_stage(chain, (0.7, None), 1.0)
    first, second = on.play(specs(chain, 2), on.large)
    copied = replace(first.steps[0], label=StepLabel(label_source=COPIED))
    rows = asked(on, [replace(first, steps=(copied, *first.steps[1:])), second], fits=lambda view: view.step < 3)
    assert [row.step_idx for row in rows] == [1, 2, 0, 1, 2]


def test_what_cloning_leaves_out_is_a_share_by_a_keyed_draw_and_never_all() -> None:
    left = left_out_tasks(TASKS, 0.25)
    assert len(left) == 10 and left == left_out_tasks(reversed(TASKS), 0.25)
    assert left < left_out_tasks(TASKS, 0.5)
    assert len(left_out_tasks(TASKS[:3], 0.01)) == 2 and len(left_out_tasks(TASKS[:2], 0.99)) == 1
    assert left_out_tasks(TASKS[:1], 0.5) == left_out_tasks([], 0.5) == frozenset()


def test_tasks_are_split_in_proportion_where_there_are_fewer_than_asked() -> None:
    count = {name: list(split_of(TASKS, 150, 100).values()).count(name) for name in ("train", "calibration")}
    assert count == {"train": 24, "calibration": 16}
    few = split_of(TASKS, 6, 4)
    assert len(few) == 10 and sorted(few.values()).count("calibration") == 4
    assert sorted(split_of(TASKS[:2], 150, 100).values()) == ["calibration", "train"]
    assert split_of([], 1, 1) == {} and list(split_of(TASKS[:1], 5, 1).values()) == ["calibration"]
