"""Twins of stored episodes: valid, equal to the live environment's, and refused where they would teach invention."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from r2v.config import CategoryConfig, PerturbationsConfig
from r2v.data.episode import Action, Episode, Observation, Step, parse_episode, to_line
from r2v.envs.desk import Desk
from r2v.perturb import PerturbedEnv, call_failed
from r2v.perturb.offline import Rejected, Report, lost_support, twin_of, twins
from r2v.perturb.schedule import Schedule, make_schedule


def replay_actions(episode: Episode) -> list[str]:
    """Return the actions that reached the environment; executed without perturbations they give the recorded success.

    The observation that answers a call, the next step's, shows its failure. The answer to the last call is in no step:
    if the step limit cut a failure off there, that action (it ended nothing, or was never carried out) is left out.
    """
    carried_out = [not call_failed(step.perturbations) for step in episode.steps[1:]]
    carried_out.append(episode.success or episode.termination != "max_steps")
    return [step.action.raw_text for step, done in zip(episode.steps, carried_out, strict=True) if done]


Make = Callable[..., PerturbationsConfig]
Player = Callable[..., Episode]
TASKS = range(40)
WAYS = {"max_steps": 16, "idempotent": True}


@pytest.fixture(scope="module")
def clean(play: Player) -> list[Episode]:
    return [play(index) for index in TASKS]


@pytest.fixture(scope="module")
def schedule(desk: Desk, only: Make) -> Schedule:
    """Return a schedule of everything that can be written into a stored episode."""
    return make_schedule(
        desk,
        only(
            tool_error=0.2,
            tool_timeout=0.1,
            partial_observation=0.15,
            shuffled_dom=0.3,
            distractor=0.3,
            prompt_injection=0.3,
            goal_typo=0.3,
            latency=0.2,
        ),
        "noisy",
        101,
    )


def _texts(episode: Episode) -> list[tuple[str, str]]:
    return [(step.observation.raw_text, step.action.raw_text) for step in episode.steps]


def _annotated(clean: list[Episode], schedule: Schedule) -> list[tuple[Episode, Episode]]:
    made = [(episode, twin_of(episode, schedule, "annotate", max_steps=16)) for episode in clean]
    return [(episode, twin) for episode, twin in made if isinstance(twin, Episode)]


def _inserted(clean: list[Episode], schedule: Schedule) -> list[tuple[Episode, Episode]]:
    made = [(episode, twin_of(episode, schedule, "insert", max_steps=16)) for episode in clean]
    return [(episode, twin) for episode, twin in made if isinstance(twin, Episode)]


def test_twins_say_what_they_are(clean: list[Episode], schedule: Schedule) -> None:
    for construction, pairs in (("annotate", _annotated(clean, schedule)), ("insert", _inserted(clean, schedule))):
        assert len(pairs) > 10
        for parent, twin in pairs:
            assert twin.construction == construction and twin.parent_episode_id == parent.episode_id
            assert (twin.condition, twin.perturbation_seed, twin.success) == ("noisy", 101, True)
            assert twin.perturbation_type != "none"
            assert [step.step_idx for step in twin.steps] == list(range(len(twin.steps)))
            assert all(step.perturbation_seed == 101 for step in twin.steps)
            assert parse_episode(to_line(twin)) == twin
        ids = [twin.episode_id for _, twin in pairs]
        assert len(set(ids)) == len(ids)


def test_annotated_twins_keep_their_actions_and_the_clean_hashes(clean: list[Episode], schedule: Schedule) -> None:
    for parent, twin in _annotated(clean, schedule):
        assert [step.action for step in twin.steps] == [step.action for step in parent.steps]
        assert [s.clean_observation_sha256 for s in twin.steps] == [s.clean_observation_sha256 for s in parent.steps]
        assert (
            _texts(twin) != _texts(parent)
            or twin.metadata.goal != parent.metadata.goal
            or any(one.category == "latency" for step in twin.steps for one in step.perturbations)
        )


def test_inserted_twins_repeat_the_failed_call(clean: list[Episode], schedule: Schedule) -> None:
    for parent, twin in _inserted(clean, schedule):
        assert len(twin.steps) > len(parent.steps)
        for before, after in zip(twin.steps, twin.steps[1:], strict=False):
            if call_failed(after.perturbations):
                assert "error" in json.loads(after.observation.raw_text)
                assert after.action == before.action and before.reward == 0.0
        carried = [step for step in twin.steps if not call_failed(step.perturbations)]
        assert [step.observation for step in carried] == [step.observation for step in parent.steps]


def test_replayed_in_the_clean_world_every_twin_gives_its_success(
    desk: Desk, clean: list[Episode], schedule: Schedule
) -> None:
    tasks = {task.task_id: task for task in desk.tasks()}
    for parent, twin in _annotated(clean, schedule) + _inserted(clean, schedule):
        assert replay_actions(twin) == [step.action.raw_text for step in parent.steps]
        env = desk.make()
        env.reset(seed=twin.metadata.seed, task=tasks[twin.metadata.task_id])
        info = [env.step(action) for action in replay_actions(twin)][-1][-1]
        assert info.success is twin.success is True


def test_played_episodes_replay_too_even_when_the_limit_cut_a_failing_call(
    desk: Desk, play: Player, only: Make
) -> None:
    failures = 0
    for index in TASKS:
        episode = play(index, only(tool_error=0.4), max_steps=8)
        failures += not episode.success
        env = desk.make()
        env.reset(seed=1, task=desk.tasks()[index])
        infos = [env.step(action)[-1] for action in replay_actions(episode)]
        assert bool(infos and infos[-1].success) == episode.success
    assert 5 < failures < len(TASKS)


def test_live_and_offline_show_the_same(desk: Desk, clean: list[Episode], schedule: Schedule) -> None:
    tasks = {task.task_id: task for task in desk.tasks()}
    for kinds, pairs in ((("goal", "edit"), _annotated(clean, schedule)), (("tool_call",), _inserted(clean, schedule))):
        for _, twin in pairs:
            env = PerturbedEnv(desk.make(), schedule.only(*kinds))
            shown, info = env.reset(seed=1, task=tasks[twin.metadata.task_id])
            assert env.goal == twin.metadata.goal
            for step in twin.steps:
                assert (shown, info.perturbations) == (step.observation.raw_text, step.perturbations)
                shown, reward, *_, info = env.step(step.action.raw_text)
                assert reward == step.reward
            assert info.success is True


def test_cutting_the_last_step_changes_no_earlier_one(clean: list[Episode], schedule: Schedule) -> None:
    for parent, twin in _annotated(clean, schedule):
        shorter = twin_of(replace(parent, steps=parent.steps[:-1]), schedule, "annotate", max_steps=16)
        if isinstance(shorter, Episode):
            assert shorter.steps == twin.steps[:-1]
        else:
            assert not any(step.perturbations for step in twin.steps[:-1])


def test_clean_episodes_hold_no_canary(clean: list[Episode], schedule: Schedule) -> None:
    """Ids occur in many environments and a canary in one: no clean episode of the same task shows it."""
    planted = [
        (twin.metadata.task_id, one.canary)
        for _, twin in _annotated(clean, schedule)
        for step in twin.steps
        for one in step.perturbations
        if one.canary
    ]
    assert planted
    assert not [
        canary
        for task_id, canary in planted
        for episode in clean
        if episode.metadata.task_id == task_id and canary in to_line(episode)
    ]


def test_every_argument_can_be_known(desk: Desk, clean: list[Episode], only: Make) -> None:
    cuts = make_schedule(
        desk, only(partial_observation=CategoryConfig(prob=0.4, severity=0.6), distractor=0.3), "noisy", 101
    )
    free = {tool.name: tool.free_arguments for tool in desk.make().tool_specs()}
    report = Report()
    made = [
        twin
        for episode in clean
        for twin in twins(episode, cuts, ["annotate"], max_steps=16, idempotent=True, report=report)
    ]
    assert report.as_json()["rejected"]["annotate"]["lost_support"] > 5
    assert any(one.category == "partial_observation" for t in made for s in t.steps for one in s.perturbations)
    for twin in made:
        known = twin.metadata.goal
        for step in twin.steps:
            known += step.observation.raw_text
            for name, value in step.action.arguments.items():
                assert name in free[step.action.action_type] or f'"{value}"' in known
            known += step.action.raw_text


def _stored(*turns: tuple[str, dict[str, str]], goal: str = "open r1", base: Episode) -> Episode:
    steps = tuple(
        Step(
            step_idx=i,
            observation=Observation(raw_text=shown),
            action=Action(raw_text=json.dumps(call), action_type="t", arguments=call),
        )
        for i, (shown, call) in enumerate(turns)
    )
    return replace(base, metadata=replace(base.metadata, goal=goal), steps=steps)


def test_support_is_lost_where_the_only_mention_goes(clean: list[Episode]) -> None:
    whole = _stored(("head\nid r22", {"id": "r22"}), ("next", {"id": "r22", "text": "free words"}), base=clean[0])
    cut = _stored(("head", {"id": "r22"}), ("next", {"id": "r22", "text": "free words"}), base=clean[0])
    assert lost_support(whole, whole) == []
    assert lost_support(whole, cut) == [(0, "r22")]


def test_support_is_not_found_in_planted_lines_or_longer_words(clean: list[Episode]) -> None:
    whole = _stored(("head\nid r22", {"id": "r22"}), base=clean[0])
    assert lost_support(whole, _stored(("head\nplanted r22", {"id": "r22"}), base=clean[0])) == [(0, "r22")]
    longer = _stored(("head r222\nid r22", {"id": "r22"}), base=clean[0])
    assert lost_support(longer, _stored(("head r222", {"id": "r22"}), base=clean[0])) == [(0, "r22")]
    inner = _stored(("head xr22\nid r22", {"id": "r22"}), base=clean[0])
    assert lost_support(inner, _stored(("head xr22", {"id": "r22"}), base=clean[0])) == [(0, "r22")]
    named = _stored(("head\nid r1", {"id": "r1"}), base=clean[0])
    assert lost_support(named, _stored(("head", {"id": "r1"}), base=clean[0])) == []
    assert lost_support(named, _stored(("head", {"id": "r1"}), goal="open 1r", base=clean[0])) == [(0, "r1")]


def test_simulated_seconds_are_added_from_the_first_page_on(desk: Desk, clean: list[Episode], only: Make) -> None:
    slow = make_schedule(desk, only(latency=1.0), "noisy", 101)
    for episode in clean[:5]:
        world = PerturbedEnv(desk.make(), slow)
        task = next(task for task in desk.tasks() if task.task_id == episode.metadata.task_id)
        infos = [world.reset(seed=1, task=task)[-1]]
        infos += [world.step(step.action.raw_text)[-1] for step in episode.steps]
        twin = twin_of(episode, slow, "annotate", max_steps=16)
        assert isinstance(twin, Episode)
        added = sum(info.sim_seconds for info in infos)
        assert twin.sim_time_seconds == pytest.approx(episode.sim_time_seconds + added)


@pytest.mark.parametrize("name", ["stale_observation", "tool_error", "tool_timeout"])
def test_no_observation_is_replaced_under_its_action(name: str, desk: Desk, clean: list[Episode], only: Make) -> None:
    schedule = make_schedule(desk, only(**{name: 1.0}), "noisy", 101)
    assert twin_of(clean[0], schedule, "annotate", max_steps=16) is Rejected.UNTOUCHED


def test_replacement_keeps_actions_that_rested_on_what_is_gone(clean: list[Episode], desk: Desk, only: Make) -> None:
    """For the ablation alone: no twin is refused for lost support, and no action changes."""
    schedule = make_schedule(desk, only(partial_observation=0.6, stale_observation=0.4), "shift", 101)
    report = Report()
    made = [
        twin
        for episode in clean
        for twin in twins(episode, schedule, ["replace"], max_steps=16, idempotent=True, report=report)
    ]
    by_id = {episode.episode_id: episode for episode in clean}
    parents = [by_id[str(twin.parent_episode_id)] for twin in made]
    assert {twin.construction for twin in made} == {"replace"} and "lost_support" not in report.as_json()["rejected"]
    assert all(replay_actions(twin) == replay_actions(parent) for twin, parent in zip(made, parents, strict=True))
    assert sum(bool(lost_support(parent, twin)) for twin, parent in zip(made, parents, strict=True)) > len(made) / 4
    failing = make_schedule(desk, only(tool_error=1.0), "noisy", 101)
    assert twin_of(clean[0], failing, "replace", max_steps=16) is Rejected.UNTOUCHED


def test_insert_takes_failing_calls_only(desk: Desk, clean: list[Episode], only: Make) -> None:
    schedule = make_schedule(desk, only(distractor=1.0), "noisy", 101)
    assert twin_of(clean[0], schedule, "insert", max_steps=16) is Rejected.UNTOUCHED


def test_rejections_have_reasons(desk: Desk, clean: list[Episode], only: Make) -> None:
    always = make_schedule(desk, only(tool_error=1.0), "noisy", 101)
    assert twin_of(clean[0], always, "insert", max_steps=16) is Rejected.TOO_LONG
    never = make_schedule(desk, only(), "noisy", 101)
    assert twin_of(clean[0], never, "annotate", max_steps=16) is Rejected.UNTOUCHED
    report = Report()
    assert list(twins(clean[0], always, ["insert"], max_steps=16, idempotent=False, report=report)) == []
    assert report.as_json()["rejected"] == {"insert": {"not_idempotent": 1}}


def test_no_retry_is_inserted_after_a_failure_that_lasts(desk: Desk, clean: list[Episode], only: Make) -> None:
    hazard = only(modes={"tool_error": "explicit_permanent"}, tool_error=0.3, tool_timeout=0.3)
    both = make_schedule(desk, hazard, "noisy", 101)
    made = [one for episode in clean for one in twins(episode, both, ["insert"], **WAYS, report=Report())]
    assert made and {one.category for twin in made for step in twin.steps for one in step.perturbations} == {
        "tool_timeout"
    }
