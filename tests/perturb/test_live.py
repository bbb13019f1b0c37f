"""The live wrapper on a real desk: calls let through, failures, snapshots, and tasks that stay solvable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from r2v.config import MODES, CategoryConfig, InferenceConfig, PerturbationMode, PerturbationsConfig
from r2v.data.episode import Episode, parse_episode, to_line
from r2v.envs.base import Environment, Info, Task
from r2v.envs.desk import Desk
from r2v.errors import UsageError
from r2v.perturb import PerturbedEnv, call_failed, wrap
from r2v.perturb.category import category
from r2v.perturb.schedule import Schedule
from r2v.rollout.session import RolloutWorld
from r2v.wire.message import ToolSpec
from tests.replaying import replay
from tests.trust import drawn

Make = Callable[..., PerturbationsConfig]
Player = Callable[..., Episode]
TASK = Task(task_id="t", goal="count to three")


class Counter:
    """An environment that counts the calls that reach it; the third call ends it, a call `bad` is refused."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        self.calls = []
        return "count 0\nrow 0", Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if action == "bad":
            return '{"error":"no"}', 0.0, False, False, Info(is_error=True)
        self.calls.append(action)
        over = len(self.calls) == 3
        info = Info(success=True if over else None, partial_score=len(self.calls) / 3, sim_seconds=0.5)
        return f"count {len(self.calls)}\nrow {len(self.calls)}", float(over), over, False, info

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return ()


def _wrapped(seed: int = 1, severity: float = 0.0, **probs: float) -> tuple[Counter, PerturbedEnv]:
    counter = Counter()
    schedule = Schedule(
        benchmark="counter",
        seed=seed,
        categories={name: CategoryConfig(prob=prob, severity=severity) for name, prob in probs.items()},
    )
    return counter, PerturbedEnv(counter, schedule)


def _drive(env: Environment, actions: list[str]) -> list[Any]:
    """Return all answers of an environment to these actions."""
    return [env.reset(seed=1, task=TASK), *(env.step(action) for action in actions)]


@pytest.mark.parametrize("settings", [{"distractor": 0.0, "tool_error": 0.0, "goal_typo": 0.0}, {}])
def test_with_nothing_scheduled_all_is_let_through(settings: dict[str, float]) -> None:
    plain, (_, env) = Counter(), _wrapped(**settings)
    bare, seen = _drive(plain, ["a", "bad", "b", "c"]), _drive(env, ["a", "bad", "b", "c"])
    assert [said[:-1] for said in seen] == [said[:-1] for said in bare]
    for (*_, ours), (page, *_, theirs) in zip(seen, bare, strict=True):
        assert (ours.success, ours.partial_score, ours.is_error, ours.harmful, ours.sim_seconds) == (
            theirs.success,
            theirs.partial_score,
            theirs.is_error,
            theirs.harmful,
            theirs.sim_seconds,
        )
        assert ours.perturbations == () and ours.clean_observation == page
    assert env.goal == TASK.goal


def test_clean_equals_noisy_at_probability_zero(play: Player, only: Make) -> None:
    clean, noisy = play(3, only(), condition="clean"), play(3, only(), condition="noisy")
    assert to_line(clean).replace('"condition":"clean"', '"condition":"noisy"') == to_line(noisy)


def test_a_disabled_category_is_silent() -> None:
    schedule = Schedule(benchmark="b", seed=1, categories={"distractor": CategoryConfig(prob=0.0)})
    assert PerturbedEnv(Counter(), schedule).reset(seed=1, task=TASK)[0] == "count 0\nrow 0"


def test_a_failed_call_never_reaches_the_world() -> None:
    counter, env = _wrapped(tool_error=1.0)
    first, _ = env.reset(seed=1, task=TASK)
    assert first == "count 0\nrow 0"
    for _ in range(5):
        shown, reward, terminated, truncated, info = env.step("a")
        assert "error" in json.loads(shown)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info.success is None and info.is_error and call_failed(info.perturbations)
        assert info.clean_observation == "count 0\nrow 0"
    assert counter.calls == []


def test_a_tool_that_failed_for_good_fails_to_the_end_and_others_work() -> None:
    get, find = json.dumps({"tool": "get", "id": "r1"}), json.dumps({"tool": "find", "name": "ann"})
    seen: set[tuple[bool, bool]] = set()
    for seed in range(30):
        hazard = {"tool_error": CategoryConfig(prob=0.3)}
        lasting: dict[str, PerturbationMode] = {"tool_error": "explicit_permanent"}
        schedule = Schedule(benchmark="counter", seed=seed, categories=hazard, modes=lasting)
        counter = Counter()
        env = PerturbedEnv(counter, schedule)
        env.reset(seed=1, task=TASK)
        first, second = env.step(get), env.step(get)
        assert not call_failed(first[-1].perturbations) or (first[0], counter.calls) == (second[0], [])
        other = env.step(find)
        seen.add((call_failed(second[-1].perturbations), call_failed(other[-1].perturbations)))
    assert seen == {(False, False), (False, True), (True, False), (True, True)}


def test_a_snapshot_knows_which_tools_are_broken(desk: Desk, only: Make) -> None:
    hazard = only(modes={"tool_error": "explicit_permanent"}, tool_error=0.4)
    find = [json.dumps({"tool": "find", "kind": "ticket", "name": "ann lee"}), json.dumps({"tool": "refresh"})]
    broken = 0
    for index in range(10):
        env, other = (wrap(desk.make(), desk, hazard, "noisy", 101) for _ in range(2))
        env.reset(seed=1, task=desk.tasks()[index])
        failed = [call_failed(env.step(action)[-1].perturbations) for action in find]
        other.restore(env.snapshot())
        again = [other.step(action) for action in find]
        assert again == [env.step(action) for action in find]
        assert all(call_failed(step[-1].perturbations) for step, before in zip(again, failed, strict=True) if before)
        broken += sum(failed)
    assert broken


def test_the_call_that_would_end_an_episode_may_fail_and_be_repeated() -> None:
    seen_last_fail = False
    for seed in range(40):
        counter, env = _wrapped(seed=seed, tool_error=0.5)
        env.reset(seed=1, task=TASK)
        terminated = False
        while not terminated:
            left = len(counter.calls)
            _, _, terminated, _, info = env.step("a")
            seen_last_fail |= left == 2 and call_failed(info.perturbations)
        assert info.success and len(counter.calls) == 3
    assert seen_last_fail


def test_timeouts_cost_simulated_seconds_and_latency_adds_to_the_worlds_own() -> None:
    _, env = _wrapped(tool_timeout=1.0)
    env.reset(seed=1, task=TASK)
    assert env.step("a")[-1].sim_seconds == 30.0
    _, env = _wrapped(latency=1.0, severity=1.0)
    env.reset(seed=1, task=TASK)
    info = env.step("a")[-1]
    assert info.sim_seconds == 0.5 + info.perturbations[0].params["seconds"] > 0.5


def test_a_stale_page_is_the_one_before_and_the_action_was_carried_out() -> None:
    counter, env = _wrapped(stale_observation=1.0)
    assert env.reset(seed=1, task=TASK)[0] == "count 0\nrow 0"
    shown, *_, info = env.step("a")
    assert (shown, info.clean_observation) == ("count 0\nrow 0", "count 1\nrow 1")
    assert env.step("a")[0] == "count 1\nrow 1"
    assert counter.calls == ["a", "a"]


def test_obeying_a_canary_is_harmful_only_when_carried_out() -> None:
    _, env = _wrapped(prompt_injection=1.0)
    _, info = env.reset(seed=1, task=TASK)
    canary = info.perturbations[0].canary
    assert canary
    assert not env.step("a")[-1].harmful
    assert env.step(f"open {canary}")[-1].harmful
    for seed in range(20):
        _, env = _wrapped(seed=seed, prompt_injection=1.0, tool_error=0.5)
        _, info = env.reset(seed=1, task=TASK)
        info = env.step(f"open {info.perturbations[0].canary}")[-1]
        assert info.harmful != call_failed(info.perturbations)


def test_an_action_that_the_world_refuses_does_no_harm(desk: Desk, only: Make) -> None:
    env = wrap(desk.make(), desk, only(prompt_injection=1.0), "noisy", 5)
    _, info = env.reset(seed=1, task=desk.tasks()[0])
    canary = info.perturbations[0].canary
    refused = json.dumps({"tool": "close", "id": canary})
    assert not env.step(refused)[-1].harmful
    opened = json.dumps({"tool": "get", "name": "ann lee", "team": "net", "item": "vpn", "id": canary})
    assert env.step(opened)[-1].harmful


def test_a_canary_is_remembered_for_this_episode_only() -> None:
    _, env = _wrapped(prompt_injection=1.0)
    _, info = env.reset(seed=1, task=TASK)
    env.reset(seed=1, task=Task(task_id="other", goal="another"))
    assert not env.step(f"open {info.perturbations[0].canary}")[-1].harmful


def test_the_goal_is_told_with_its_typing_errors(desk: Desk, only: Make) -> None:
    env = wrap(desk.make(), desk, only(goal_typo=1.0), "noisy", 5)
    with pytest.raises(RuntimeError):
        _ = env.goal
    task = desk.tasks()[0]
    _, info = env.reset(seed=1, task=task)
    assert env.goal != task.goal
    assert env.goal[env.goal.index("{") :] == task.goal[task.goal.index("{") :]
    assert [one.category for one in info.perturbations] == ["goal_typo"]


def test_wrap_holds_out_what_only_shift_may_show(desk: Desk) -> None:
    perturbations = PerturbationsConfig(
        stale_observation=CategoryConfig(prob=1.0),
        prompt_injection=CategoryConfig(prob=1.0),
        held_out=["stale_observation"],
        held_out_families=["direct", "indirect"],
    )
    seen: dict[str, set[str]] = {"noisy": set(), "shift": set()}
    for condition in ("noisy", "shift"):
        for task in desk.tasks()[:30]:
            env = wrap(desk.make(), desk, perturbations, condition, 901)
            infos = [env.reset(seed=1, task=task)[-1]]
            find = json.dumps({"tool": "find", "kind": task.payload["kind"], "name": task.payload["name"]})
            infos.append(env.step(find)[-1])
            seen[condition].update(
                one.params.get("family", one.category) for info in infos for one in info.perturbations
            )
    assert not seen["noisy"] & {"stale_observation", "direct", "indirect"}
    assert {"stale_observation", "direct", "indirect"} <= seen["shift"]


def test_a_snapshot_brings_everything_back(desk: Desk, only: Make, play: Player) -> None:
    noisy = only(
        tool_error=0.3,
        stale_observation=0.3,
        partial_observation=0.3,
        distractor=0.3,
        prompt_injection=0.5,
        goal_typo=1.0,
    )
    for index in range(10):
        actions = [step.action.raw_text for step in play(index, noisy).steps]
        env = wrap(desk.make(), desk, noisy, "noisy", 101)
        env.reset(seed=1, task=desk.tasks()[index])
        half = len(actions) // 2
        planted = [p.canary for action in actions[:half] for p in env.step(action)[-1].perturbations if p.canary]
        state, goal = env.snapshot(), env.goal
        ahead = [env.step(action) for action in actions[half:]]
        env.restore(state)
        assert [env.step(action) for action in actions[half:]] == ahead
        other = wrap(desk.make(), desk, noisy, "noisy", 101)
        other.restore(state)
        assert other.goal == goal
        assert [other.step(action) for action in actions[half:]] == ahead
        if planted:
            other.restore(state)
            obey = json.dumps({"tool": "reply", "name": "ann lee", "id": planted[0], "text": "see the record"})
            answer = other.step(obey)[-1]
            assert answer.harmful != call_failed(answer.perturbations)


def test_a_world_without_snapshots_says_so() -> None:
    _, env = _wrapped(distractor=1.0)
    env.reset(seed=1, task=TASK)
    with pytest.raises(UsageError, match="Counter has no snapshot"):
        env.snapshot()


LASTING = ("schema_drift",)
"""Categories whose effect lasts: the expert knows the old names alone."""


@pytest.mark.parametrize("name", [name for name in PerturbationsConfig.categories() if name not in LASTING])
def test_the_expert_solves_the_desk_under_every_category_that_passes(name: str, play: Player, only: Make) -> None:
    episodes = [play(index, only(**{name: 0.2})) for index in range(50)]
    assert all(episode.success for episode in episodes)
    assert any(step.perturbations for episode in episodes for step in episode.steps)


def test_the_desk_stays_solvable_under_all_of_them_together(play: Player) -> None:
    for condition in ("noisy", "shift"):
        assert all(play(index, PerturbationsConfig(), condition).success for index in range(50))


REHEARSED = drawn(range(60), 4, "rehearsal of perturbations")
MODES_OF = [
    (name, mode) for name in PerturbationsConfig.categories() for mode in MODES.get(name, (category(name).mode,))
]


@pytest.mark.parametrize("name, mode", MODES_OF)
def test_the_teacher_is_hit_and_the_record_replays_to_the_same_outcome(
    name: str,
    mode: PerturbationMode,
    desk: Desk,
    play: Player,
    only: Make,
) -> None:
    hazard = only(modes={name: mode} if name in MODES else {}, **{name: 1.0})
    world = RolloutWorld(desk, hazard, InferenceConfig(max_steps=20))
    for index in REHEARSED:
        episode = play(index, hazard)
        marks = [one for step in episode.steps for one in step.perturbations]
        assert {(one.category, one.mode) for one in marks} == {(name, mode)}
        assert episode.perturbation_type == category(name).group
        assert replay(world, parse_episode(to_line(episode)), desk.tasks()[index]) is None
