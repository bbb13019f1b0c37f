"""Task states as problems, and the executed value of an action in one of them, on doors whose answers are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from r2v.config import InferenceConfig, PerturbationsConfig, PolicyConfig, ProblemsConfig, RolloutConfig, TaskSelection
from r2v.envs.chain import ChainBenchmark, call, right_action
from r2v.errors import EnvironmentFault, InputError
from r2v.hrl.models.roles import Roles, build_roles
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.rollout.episode import play_many
from r2v.hrl.rollout.generator import GenerationRequest
from r2v.hrl.rollout.task_rollout import TRIES, ExecutedActions, task_states
from r2v.hrl.tasks.task_states import TaskPrompter, TaskState, divided, read_states, write_states
from r2v.hrl.types import Completion
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.rollout.session import EpisodeSpec, RolloutWorld, episode_specs

from ..playing import settings

DOORS = 3


def world(**options: Any) -> RolloutWorld:
    benchmark = ChainBenchmark(num_tasks=12, length=DOORS, hard=1, **options)
    inference = InferenceConfig(max_steps=DOORS, max_new_tokens=8)
    return RolloutWorld(benchmark, PerturbationsConfig(), inference)


def specs(benchmark: Any) -> list[EpisodeSpec]:
    tasks = TaskSelection(condition="clean", perturbation_seeds=[1], split_seed=0, split_by="task_id")
    return episode_specs(benchmark, "train", [5], tasks, method="slm_only")


def walked(played: RolloutWorld, spec: EpisodeSpec, steps: int) -> TaskState:
    """Return the state after so many right doors."""
    session = played.start(spec)
    session.open()
    seen, actions = list(session.observations), list[str]()
    for _ in range(steps):
        actions.append(right_action(seen[-1]))
        observation, *_ = session._env.step(actions[-1])
        seen.append(observation)
    session.close()
    return TaskState(spec=spec, actions=tuple(actions), messages=build_messages(spec.task.goal, seen, actions))


class Walker:
    """Stand-in for an encoder and a model: a prompt is the page, a completion its right door, or a wrong one."""

    def __init__(self, errs: bool = False) -> None:
        self.errs, self.asked = errs, 0

    def __call__(self, messages: Sequence[Any]) -> list[int]:
        return list(messages[-1].content.encode())

    async def generate(self, requests: tuple[GenerationRequest, ...]) -> tuple[Completion, ...]:
        self.asked += len(requests)
        pages = [bytes(request.prompt).decode() for request in requests]
        return tuple(
            Completion(
                prompt=request.prompt,
                tokens=(1,),
                logprobs=(),
                ended=True,
                version=0,
                text="nowhere" if self.errs else right_action(page),
            )
            for request, page in zip(requests, pages, strict=True)
        )


def scores(played: RolloutWorld, state: TaskState, answers: Sequence[str], walker: Walker) -> list[float]:
    checker = ExecutedActions.of(played, [state], walker, 8)  # type: ignore[arg-type]
    waves = checker.waves(RolloutConfig())

    async def conversation() -> list[float]:
        return await checker.scorer(walker.generate, waves)(state.problem(), answers)

    [found] = waves.run([conversation])
    return found


def test_an_action_is_worth_what_the_actor_makes_of_it() -> None:
    played = world()
    state = walked(played, specs(played.benchmark)[0], 1)
    right = right_action(state.messages[-1].content)
    wrong = next(call(door) for door in "abcd" if call(door) != right)
    assert scores(played, state, [right, wrong, right], Walker()) == [1.0, 0.0, 1.0]
    assert scores(played, state, [right, wrong], Walker(errs=True)) == [0.0, 0.0]


def test_the_last_action_needs_nobody_who_goes_on() -> None:
    played, walker = world(), Walker()
    state = walked(played, specs(played.benchmark)[1], DOORS - 1)
    assert scores(played, state, [right_action(state.messages[-1].content)], walker) == [1.0]
    assert walker.asked == 0


def test_an_action_that_was_played_is_not_played_again() -> None:
    played, walker = world(), Walker()
    state = walked(played, specs(played.benchmark)[2], 1)
    scores(played, state, ["nowhere"] * 5, walker)
    assert walker.asked == DOORS - 2


def test_a_world_that_breaks_is_tried_again_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    played, begun = world(), list[int]()
    state = walked(played, specs(played.benchmark)[0], 0)

    def broken(*_: Any) -> Any:
        begun.append(1)
        raise ConnectionError("the site is down")

    monkeypatch.setattr(played.benchmark, "make", broken, raising=False)
    with pytest.raises(EnvironmentFault, match="its world broke 3 times"):
        scores(played, state, ["nowhere"], Walker())
    assert len(begun) == TRIES


def test_no_task_is_on_both_sides_and_more_problems_move_none() -> None:
    played = world()
    states = [walked(played, spec, step) for spec in specs(played.benchmark) for step in range(DOORS)]
    trained, held_out = divided(states, ProblemsConfig(path="tasks", held_out=4, count=100))
    assert len(held_out) == 4 and not {one.spec.task.task_id for one in trained} & {
        one.spec.task.task_id for one in held_out
    }
    assert divided(states[::-1], ProblemsConfig(path="tasks", held_out=4, count=2))[1] != [] and len(trained) > 2
    with pytest.raises(InputError, match="leaves none to train on"):
        divided(states, ProblemsConfig(path="tasks", held_out=len(states)))


def test_states_are_read_as_they_were_written(tmp_path: Path) -> None:
    played = world()
    every = specs(played.benchmark)
    states = [walked(played, spec, step) for spec in every[:2] for step in range(2)]
    assert read_states(tmp_path, every) is None
    write_states(tmp_path, states)
    assert read_states(tmp_path, every) == states
    with pytest.raises(InputError, match="no state of a task that is played now"):
        read_states(tmp_path, every[2:])


def test_a_goal_that_leaves_no_room_for_instructions_is_hinted_to_without_them(student: tuple[Roles, Encoder]) -> None:
    played = world()
    state = walked(played, specs(played.benchmark)[0], 1)
    longest = len(student[1]([*state.messages, *state.messages[1:]]))
    narrow = Encoder.of(student[0].tokenizer, PolicyConfig(model_name="tiny", max_seq_len=longest), 8)
    hints = [TaskPrompter(one, [state]).hint(state.problem(), [], "go") for one in (student[1], narrow)]
    assert len(hints[0]) > len(hints[1]) + 20 and len(hints[1]) <= longest - 8


@pytest.fixture(scope="module")
def student() -> tuple[Roles, Encoder]:
    policy = PolicyConfig(model_name="tiny", lora_r=4, device="cpu")
    roles = build_roles(policy, settings(), 0, devices=Devices.all_on("cpu"))
    return roles, Encoder.of(roles.tokenizer, policy, 8)


def test_the_bundled_student_answers_hints_and_answers_again_in_its_own_states(student: tuple[Roles, Encoder]) -> None:
    """The first prompt of a state is the one that the student acts on, and its action there is a first answer."""
    (roles, encoder), played = student, world()
    h = replace(settings(), answer_tokens=8, hint_tokens=4)
    states = task_states(
        played, specs(played.benchmark)[:2], roles=roles, encoder=encoder, max_tokens=8, rollout=RolloutConfig()
    )
    assert [state.id.rpartition("#")[2] for state in states] == ["0", "1", "2"] * 2
    prompter = TaskPrompter(encoder, states)
    episodes = play_many(
        [state.problem() for state in states],
        roles=roles,
        prompter=prompter,
        checker=ExecutedActions.of(played, states, encoder, 8),
        h=h,
        key=("test",),
        temperature=0.0,
    )
    for before, after in zip(states, states[1:], strict=False):
        if after.actions:
            assert after.actions == (*before.actions, after.messages[-2].content)
    for state, episode in zip(states, episodes, strict=True):
        first, [group] = episode.turns[0].answer, episode.hints
        assert first.prompt == tuple(encoder(state.messages)) and episode.turns[0].score == 0.0
        assert len(group) == 3 and prompter.hint(state.problem(), [], first.text) == group[0].hint.prompt
        assert group[0].after.answer.prompt[: len(first.prompt)] == first.prompt
    assert episodes[0].turns[0].answer.text == states[1].actions[0]
