"""A play's key is everything that determines it and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from r2v.config import CandidatesConfig, InferenceConfig
from r2v.data.episode import Episode
from r2v.envs.base import Task
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EnvironmentFault
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import Request, ScoreReply, ScoreRequest
from r2v.rollout.cells import Cell, MemoryPlayer, measured
from r2v.rollout.counterfactual import play_oracle
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.play_lines import BrokenPlay
from r2v.rollout.session import EpisodeSpec
from tests.chains import Stage, chain_stage, specs, stage
from tests.counted import Counted, straight_on
from tests.refusing import Refusing, refusing_side
from tests.rollouts import play_candidates, play_corruptions, roll_out_features

CHAIN = ChainBenchmark(num_tasks=4, length=2)
SPEC = EpisodeSpec(task=Task(task_id="t-1", goal="open it", payload={"n": 1}), seed=1, condition="noisy", split="train")


async def never(spec: EpisodeSpec) -> list[Any]:
    raise AssertionError("played")


def key(spec: EpisodeSpec = SPEC, what: str = "", **identity: Any) -> str:
    (found,) = Cell(what=what, specs=[spec], play=never, kinds=(), identity=identity).play_keys()
    return found


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, seed=2),
        replace(SPEC, condition="clean"),
        replace(SPEC, perturbation_seed=3),
        replace(SPEC, method="r2v"),
        replace(SPEC, split="evaluation"),
        replace(SPEC, extra={"operating_point": "b0.10"}),
        replace(SPEC, task=replace(SPEC.task, goal="shut it")),
        replace(SPEC, task=replace(SPEC.task, payload={"n": 2})),
    ],
)
def test_another_spec_is_another_play(other: EpisodeSpec) -> None:
    assert key(other) != key()


def test_another_way_of_playing_is_another_play_and_a_name_is_none() -> None:
    assert len({key(), key(tau=0.1), key(tau=0.2), key(slm="ab"), key(slm="cd")}) == 5
    assert key(what="noisy r2v") == key() and key(a=1, b=2) == key(b=2, a=1)


def test_a_payload_that_is_no_json_is_known_by_its_task() -> None:
    tasks = [replace(SPEC.task, payload={"n": object()}), replace(SPEC.task, payload={1: {2}, "a": 3})]
    assert len({key(replace(SPEC, task=task)) for task in tasks}) == 1


def test_each_play_is_played_once_and_given_in_order() -> None:
    on, played = chain_stage(CHAIN, (0.7, None), 0.9), list[str]()

    async def play(spec: EpisodeSpec) -> list[Episode]:
        played.append(spec.task.task_id)
        return [await on.world.start(spec).finish(on.small, on.waves)]

    cell, player = Cell(what="all", specs=specs(CHAIN, 4), play=play, kinds=(Episode,)), MemoryPlayer(on.waves)
    player.play([cell, replace(cell, specs=list(reversed(cell.specs)))])
    assert sorted(played) == [spec.task.task_id for spec in cell.specs]
    assert [episode.metadata.task_id for (episode,) in player.records(cell)] == [s.task.task_id for s in cell.specs]


def test_a_cell_in_which_nothing_was_measured_is_a_fault_of_the_world() -> None:
    on = chain_stage(CHAIN, (0.7, None), 0.9)

    async def play(spec: EpisodeSpec) -> list[Any]:
        broke = spec.task.task_id != first or everywhere
        return [BrokenPlay(reason="the site is gone")] if broke else [SPEC.task]

    some = specs(CHAIN, 4)
    first, everywhere = some[0].task.task_id, False
    cell = Cell(what="all", specs=some, play=play, kinds=())
    assert list(measured(cell, MemoryPlayer(on.waves))) == [[SPEC.task]]
    everywhere = True
    with pytest.raises(EnvironmentFault, match=r"broke in all 4 episodes, first: the site is gone; .*check-env"):
        MemoryPlayer(on.waves).play([cell])


def too_long(request: Request) -> bool:
    """Contexts of every second corridor, from the third door on."""
    goal = next(message.content for message in request.messages if message.role == "user")
    return int(goal.split()[-1]) % 2 == 1 and len(request.messages) > 7


def always(request: Request) -> bool:
    return True


def refused_stage(refuses: Callable[[Request], bool], llm: Any = straight_on, **options: Any) -> Stage:
    counted = Counted(num_tasks=6, length=5)
    on = stage(counted, straight_on, llm)
    return replace(on, llm=refusing_side(on.waves, Refusing(llm, refuses, **options)))


def of_six(on: Stage) -> list[EpisodeSpec]:
    return specs(on.world.benchmark, 6)


def census(on: Stage) -> tuple[bool, int]:
    counted: Any = on.world.benchmark
    return counted.census.made > 0, counted.census.live


def features(on: Stage, faults: list[str]) -> set[str]:
    extractor = FeatureExtractor(InferenceConfig())
    rows = roll_out_features(of_six(on), on.world, on.small, on.large, extractor, on.waves, faults=faults)
    return {row.task_id for row in rows}


async def no_opinion(request: ScoreRequest) -> ScoreReply:
    return ScoreReply(score=0.5)


def candidates(on: Stage, faults: list[str]) -> set[str]:
    sampling, some = CandidatesConfig(num_samples=2), of_six(on)
    states = play_candidates(
        some, on.world, on.small, on.large, [no_opinion], lambda task_id: 0, sampling, on.waves, faults=faults
    )
    return {state.task_id for state in states}


def corruptions(on: Stage, faults: list[str]) -> set[str]:
    episodes, records = play_corruptions(of_six(on), on.world, on.large, on.waves, per_episode=2, discount=0.7)
    faults += [episode.env_fault for episode in episodes if episode.env_fault is not None]
    return {record.task_id for record in records}


def oracle(on: Stage, faults: list[str]) -> set[str]:
    async def play(spec: EpisodeSpec) -> list[Episode]:
        return [await play_oracle(on.world, spec, on.small, on.large, on.waves)]

    cell = Cell(what="oracle", specs=of_six(on), play=play, kinds=(Episode,))
    return {episode.metadata.task_id for (episode,) in measured(cell, MemoryPlayer(on.waves), faults)}


PLAYS = (features, candidates, corruptions, oracle)


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_a_refused_question_is_a_fault_of_its_episode_in_every_way_of_playing(
    play: Callable[[Stage, list[str]], set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    on, faults = refused_stage(too_long), list[str]()
    assert play(on, faults) == {"t-00", "t-02", "t-04"}
    assert faults == ["no answer: 400 the context is too long"] * 3
    assert census(on) == (True, 0)
    if play is not corruptions:  # which hands its faulty episodes to the stage
        assert "3 of 6 episodes were not measured, first: no answer: 400 the context is too long" in caplog.text


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_where_every_question_is_refused_nothing_was_measured(play: Callable[[Stage, list[str]], set[str]]) -> None:
    on = refused_stage(always)
    with pytest.raises(EnvironmentFault, match="all 6 episodes, first: no answer: 400 the context is too long"):
        play(on, [])
    assert census(on) == (True, 0)


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_a_question_that_may_yet_be_answered_ends_the_stage(play: Callable[[Stage, list[str]], set[str]]) -> None:
    on = refused_stage(too_long, final=False)
    with pytest.raises(Unanswered):
        play(on, [])
    assert census(on) == (True, 0)


def test_an_episode_keeps_what_was_played_before_the_refusal() -> None:
    on = refused_stage(too_long)
    episodes = on.play(of_six(on), on.large)
    assert [episode.env_fault is None for episode in episodes] == [True, False] * 3
    assert {(len(episode.steps), episode.termination, episode.success) for episode in episodes} == {
        (5, "stop", True),
        (3, "env_error", False),
    }
