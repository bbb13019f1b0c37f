"""Forks are recipes: the live environments are those being played, in every stage that branches, and all are closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from r2v.config import CandidatesConfig, InferenceConfig, PerturbationsConfig
from r2v.envs.base import Task, tools_of
from r2v.envs.check import check_benchmark
from r2v.envs.desk import Desk
from r2v.llm.types import Request, ScoreReply, ScoreRequest
from r2v.llm.waves import Waves
from r2v.rollout.actors import Act
from r2v.rollout.counterfactual import play_oracle
from r2v.rollout.fork import fork
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import RolloutWorld
from tests.replaying import replay
from tests.rollouts import play_candidates, play_corruptions, roll_out_features

from ..chains import Stage, specs, stage
from ..counted import WALK, Counted, CountedEnvironment, elsewhere, straight_on

WIDTH = 64
Speak = Callable[[Request], str]


def corridors(counted: Counted, llm: Speak, slm: Speak = straight_on, *, width: int = WIDTH) -> Stage:
    waves = Waves(workers=2, max_conversations=width)
    return stage(counted, slm, llm, waves=waves, max_steps=counted.length + 1)


async def no_opinion(request: ScoreRequest) -> ScoreReply:
    return ScoreReply(score=0.5)


def candidates(counted: Counted, llm: Speak) -> int:
    on, sampling = corridors(counted, llm), CandidatesConfig(num_samples=2)
    some = specs(counted, counted.num_tasks)
    return len(play_candidates(some, on.world, on.small, on.large, [no_opinion], lambda task_id: 0, sampling, on.waves))


def features(counted: Counted, llm: Speak) -> int:
    """Roll out router features (an evaluation's gains are the same rollouts); return their number."""
    on, extractor = corridors(counted, llm), FeatureExtractor(InferenceConfig())
    some = specs(counted, counted.num_tasks)
    return len(roll_out_features(some, on.world, on.small, on.large, extractor, on.waves))


def oracle(counted: Counted, llm: Speak) -> int:
    on = corridors(counted, llm)
    play = partial(play_oracle, on.world, slm=on.small, llm=on.large, waves=on.waves)
    episodes = on.waves.run(partial(play, spec) for spec in specs(counted, counted.num_tasks))
    return sum(len(episode.steps) for episode in episodes)


def corruptions(counted: Counted, llm: Speak) -> int:
    def teacher(request: Request) -> str:
        return straight_on(request) if llm is elsewhere else llm(request)

    on = corridors(counted, teacher)
    some = specs(counted, counted.num_tasks)
    episodes, records = play_corruptions(some, on.world, on.large, on.waves, per_episode=4, discount=0.7)
    assert len(records) == 4 * len(episodes)
    return sum(len(episode.steps) for episode in episodes)


STAGES = {candidates: WIDTH, features: WIDTH, corruptions: WIDTH, oracle: 2 * WIDTH}
"""Stage -> the most environments that live at once: an oracle's episode waits while a branch of it is played; the
others play their branches when the episode is over."""


@pytest.mark.parametrize("play", STAGES, ids=lambda play: play.__name__)
def test_live_worlds_are_the_conversations_and_the_running_branches(play: Any) -> None:
    counted = Counted(length=10 if play is oracle else 16)
    assert play(counted, elsewhere) == counted.num_tasks * counted.length
    census = counted.census
    print(
        f"{play.__name__}: {census.made} worlds made, {census.peak} at once, {STAGES[play]} allowed, {census.live} left"
    )
    assert 1 < census.peak <= STAGES[play]
    assert census.live == 0
    assert census.made >= counted.num_tasks * (5 if play is corruptions else counted.length), "the branches were played"


class Broken(Exception):
    """An error that no stage expects."""


@pytest.mark.parametrize("play", STAGES, ids=lambda play: play.__name__)
@pytest.mark.parametrize("at", [1, 40])
def test_an_exception_leaves_no_world_behind(play: Any, at: int) -> None:
    counted, asked = Counted(num_tasks=8, length=6), iter(range(10**6))

    def breaks(request: Request) -> str:
        if next(asked) == at:
            raise Broken
        return straight_on(request) if play is corruptions else elsewhere(request)

    with pytest.raises(Broken):
        play(counted, breaks)
    assert counted.census.made > 0 and counted.census.live == 0


def test_a_world_is_closed_when_the_step_that_runs_in_it_has_ended() -> None:
    """Another conversation fails during a step: the step cannot be cancelled, so it is waited for."""
    entered, release, order = threading.Event(), threading.Event(), list[str]()

    class Slow(CountedEnvironment):
        def step(self, action: str) -> Any:
            entered.set()
            release.wait()
            order.append("stepped")
            return super().step(action)

        def close(self) -> None:
            order.append("closed")
            super().close()

    class SlowWorlds(Counted):
        def make(self) -> Slow:
            self.census.born()
            return Slow(self)

    worlds = SlowWorlds(num_tasks=1, length=3)
    waves = Waves(workers=3, max_conversations=3)
    on = stage(worlds, straight_on, straight_on, waves=waves)

    async def fails() -> None:
        await waves.world(entered.wait)
        raise Broken

    async def releases() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:  # cancelled beside the conversation whose step runs
            release.set()

    session = on.world.start(specs(worlds, 1)[0])
    with pytest.raises(Broken):
        waves.run([partial(session.finish, on.small, waves), fails, releases])
    assert order == ["stepped", "closed"] and worlds.census.live == 0


def test_a_world_is_closed_although_its_conversation_is_cancelled_while_it_waits_for_that() -> None:
    """The only thread is taken, so the closing call is still in the queue when another conversation fails."""
    worlds = Counted(num_tasks=1, length=3)
    waves = Waves(workers=1, max_conversations=3)
    on = stage(worlds, straight_on, straight_on, waves=waves)
    session, release, closing = on.world.start(specs(worlds, 1)[0]), threading.Event(), asyncio.Event()

    async def closes() -> None:
        async with session.live(waves):
            held = asyncio.ensure_future(waves.world(release.wait))
            await asyncio.sleep(0)
            closing.set()
        await held

    async def fails() -> None:
        await closing.wait()
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(release.set)
        raise Broken

    with pytest.raises(Broken):
        waves.run([closes, fails])
    assert (worlds.census.made, worlds.census.live) == (1, 0)


def test_a_fork_holds_no_world_and_can_be_played_many_times() -> None:
    counted = Counted(num_tasks=1, length=4)
    on = corridors(counted, elsewhere)
    session = on.world.start(specs(counted, 1)[0])
    session.open()
    session.apply(Act(text=straight_on(Request(messages=session.view().messages, key=())), source="slm"))
    point = fork(session)
    session.close()
    assert counted.census.live == 0 and counted.census.made == 1
    for _ in range(3):
        [episode] = on.waves.run([lambda: point.session().finish(on.small, on.waves)])
        assert episode.success and len(episode.steps) == 4
    assert (counted.census.live, counted.census.made, counted.census.peak) == (0, 4, 1)


def test_who_looks_at_a_world_closes_it_too() -> None:
    counted = Counted(num_tasks=2, length=3)
    assert tools_of(counted) == (WALK,)
    check_benchmark(counted)
    assert counted.census.made > 10 and counted.census.live == 0
    on = corridors(counted, elsewhere)
    [episode] = on.play(specs(counted, 1), on.small)
    assert replay(on.world, episode, counted.tasks()[0]) is None
    changed = Task(task_id=counted.tasks()[1].task_id, goal="another")
    assert replay(corridors(Counted(length=2), elsewhere).world, episode, changed) is not None
    assert counted.census.live == 0


def test_a_world_that_cannot_be_closed_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(CountedEnvironment):
        def close(self) -> None:
            raise OSError("the browser does not answer")

    class StuckWorlds(Counted):
        def make(self) -> Stuck:
            return Stuck(self)

    plain, stuck = Counted(num_tasks=1, length=3), StuckWorlds(num_tasks=1, length=3)
    episodes = []
    for worlds in (plain, stuck):
        on = corridors(worlds, elsewhere)
        episodes.append(on.play(specs(worlds, 1), on.small))
    assert episodes[0] == episodes[1]
    assert "close raised OSError: the browser does not answer" in caplog.text


def test_a_branch_that_ends_at_once_is_judged_like_any_episode() -> None:
    """Its only reply is not a tool call."""
    world = RolloutWorld(Desk(), PerturbationsConfig(), InferenceConfig(max_steps=1))
    session = world.start(specs(world.benchmark, 1)[0])
    session.open()
    twin = fork(session).session()
    for one in (session, twin):
        one.open() if one is twin else one.view()
        one.apply(Act(text="I am done.", source="slm"))
    assert twin.episode().outcome == session.episode().outcome == "unparsed"
