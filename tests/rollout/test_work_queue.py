"""The work queue: the key of a play, the block of a task, and several workers on the same cells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.blocks import main as memory_of_blocks
from r2v.config import CandidatesConfig, InferenceConfig, RolloutConfig
from r2v.data.episode import Episode, to_dict
from r2v.envs.base import Task
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EnvironmentFault, Interrupted, LeaseConflict
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import Request, ScoreReply, ScoreRequest
from r2v.llm.waves import Waves
from r2v.rollout.counterfactual import play_oracle
from r2v.rollout.episode_cache import BrokenPlay, EpisodeCache
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.work_queue import BlockPlayer, Cell, HeldBlocks, block_size, blocks_of, measured, working_in
from r2v.slurm.chain.job_record import progressed, record_at
from r2v.storage import record
from r2v.storage.lease import Owner, holder, lease
from tests.chains import Stage, chain_stage, specs, stage
from tests.counted import Counted, straight_on
from tests.refusing import Refusing, refusing_side
from tests.rollouts import MemoryPlayer, play_candidates, play_corruptions, roll_out_features

CHAIN = ChainBenchmark(num_tasks=12, length=2)
SPECS = specs(CHAIN, 12)


async def never(spec: EpisodeSpec) -> list[Any]:
    raise AssertionError("played")


def cell(method: str, some: list[EpisodeSpec] = SPECS, play: Any = never) -> Cell:
    return Cell(what=method, specs=some, play=play, kinds=(Episode,), identity={"method": method})


def tasks_of(cells: list[Cell], size: int) -> list[list[str]]:
    return [
        list(dict.fromkeys(spec.task.task_id for _, spec in block.plays.values())) for block in blocks_of(cells, size)
    ]


class Counting:
    """A cell whose plays are counted by task."""

    def __init__(self) -> None:
        self.on = chain_stage(CHAIN, (0.7, None), 0.9)
        self.played: list[str] = []

    async def play(self, spec: EpisodeSpec) -> list[Episode]:
        self.played.append(spec.task.task_id)
        return [await self.on.world.start(spec).finish(self.on.small, self.on.waves)]

    def cells(self) -> list[Cell]:
        return [cell("a", play=self.play), cell("b", play=self.play)]

    def player(self, store: Path, **options: Any) -> BlockPlayer:
        return BlockPlayer(self.on.waves, EpisodeCache(store, "stage-1"), 5, **options)


def test_a_life_that_finishes_no_episode_is_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule for a requeued job: it continues as long as each life adds an episode to the cache."""
    monkeypatch.setenv(record.FOLDER, str(tmp_path / "job"))
    further, add = list[bool](), EpisodeCache.add
    for life, episodes in enumerate((5, 0, 4, 100)):
        game, left = Counting(), iter([True] * episodes)

        def stopping(cache: EpisodeCache, *play: Any, left: Any = left) -> None:
            if not next(left, False):
                raise Interrupted("the time is over")
            add(cache, *play)

        monkeypatch.setattr(EpisodeCache, "add", stopping)
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(life))
        with suppress(Interrupted):
            game.player(tmp_path / "episodes").play(game.cells(), "evaluation")
        further.append(progressed(record_at(tmp_path / "job"), life, []))
    assert further == [True, False, True, True]
    events = record_at(tmp_path / "job").events
    assert [event["done"] for event in events if event["restart"] == 1] == [5, 5], "what is kept counts in each life"
    assert (events[-1]["done"], events[-1]["total"], events[-1]["blocks_left"]) == (24, 24, 0)


def test_a_block_holds_whole_tasks_and_methods_do_not_move_them() -> None:
    ids = [spec.task.task_id for spec in SPECS]
    assert tasks_of([cell("a")], 5) == [ids[:5], ids[5:10], ids[10:]]
    assert tasks_of([cell("a"), cell("b"), cell("c")], 5) == [ids[:5], ids[5:10], ids[10:]]
    both = [*SPECS, *(replace(spec, seed=2) for spec in SPECS)]
    assert tasks_of([cell("a", both)], 5) == [ids[i : i + 3] for i in range(0, 12, 3)]
    assert blocks_of([], 5) == [] and tasks_of([cell("a")], 1000) == [ids]


def test_a_play_of_two_cells_is_played_once_and_blocks_are_named_by_their_split() -> None:
    (block,) = blocks_of([cell("a"), cell("a")], 1000)
    assert len(block.plays) == 12 and block.name == "evaluation-0000"


def test_what_was_played_is_not_played_again(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    first.player(tmp_path).play(first.cells())
    again = second.player(tmp_path)
    again.play(second.cells())
    assert len(first.played) == 24 and not second.played
    a, b = second.cells()
    found = [[episode for (episode,) in again.records(one)] for one in (a, b)]
    assert list(again.plain_episodes(a)) == [to_dict(episode) for episode in found[0]]
    assert found[0] == found[1] and [e.metadata.task_id for e in found[0]] == [spec.task.task_id for spec in SPECS]
    assert len(list(tmp_path.glob("stage-1/*.jsonl"))) == 3 and not list(tmp_path.glob("stage-1/*.lease"))


def test_two_players_share_the_blocks_and_both_have_all(tmp_path: Path) -> None:
    players = [Counting(), Counting()]

    def work(one: Counting) -> None:
        one.player(tmp_path, pause=0.01).play(one.cells())

    threads = [threading.Thread(target=work, args=(one,)) for one in players]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted([*players[0].played, *players[1].played]) == sorted([spec.task.task_id for spec in SPECS] * 2)


def test_a_block_that_another_holds_is_waited_for_and_then_played(tmp_path: Path) -> None:
    one = Counting()
    held = lease(tmp_path / "stage-1" / "evaluation-0001.lease")
    held.__enter__()
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        assert len(one.played) == 14, "the other two blocks are played first"
        if len(sleeps) == 3:
            held.__exit__(None, None, None)

    one.player(tmp_path, sleep=sleep).play(one.cells())
    assert len(sleeps) == 3 and len(one.played) == 24


def test_small_blocks_are_played_side_by_side_and_nobody_takes_more_than_its_share(tmp_path: Path) -> None:
    """One process takes blocks as conversations become free; of two, neither holds more than half of all blocks plus
    one."""
    held = list[int]()

    def most_held(beside: int) -> int:
        one, folder = Counting(), tmp_path / f"beside-{beside}"
        held.clear()

        async def play(spec: EpisodeSpec) -> list[Episode]:
            held.append(len(list(folder.glob("stage-1/evaluation-*.lease"))))
            return await one.play(spec)

        with ExitStack() as others:
            for _ in range(beside):
                others.enter_context(working_in(folder / "stage-1"))
            player = BlockPlayer(one.on.waves, EpisodeCache(folder, "stage-1"), 1)
            player.play([cell("a", play=play), cell("b", play=play)])
        assert len(one.played) == 24
        return max(held)

    assert most_held(0) == 12, "the engine is wide enough for all"
    assert most_held(1) <= 7 and most_held(5) <= 3, "a share, and the block that a play of it has left room for"


@pytest.mark.parametrize("kept", [0, 1, 7, 23])
def test_a_stop_at_any_play_costs_at_most_those_in_flight(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage that plays resumes like this: only the plays in flight start again."""
    width, lives, add = 4, list[Counting](), EpisodeCache.add
    for last in (kept, 100):
        left = iter([True] * last)

        def stopping(cache: EpisodeCache, *play: Any, left: Any = left) -> None:
            if not next(left, False):
                raise Interrupted("the time is over")
            add(cache, *play)

        monkeypatch.setattr(EpisodeCache, "add", stopping)
        lives.append(Counting())
        lives[-1].on = chain_stage(CHAIN, (0.7, None), 0.9, waves=Waves(workers=1, max_conversations=width))
        with suppress(Interrupted):
            lives[-1].player(tmp_path).play(lives[-1].cells())
    again = sum(len(life.played) for life in lives) - 24
    print(f"stopped after {kept} of 24 plays: {again} begun again, {width} in flight at most")
    assert len(lives[1].played) == 24 - kept and again <= width


def test_a_conflict_inside_a_block_is_no_block_of_somebody_else(tmp_path: Path) -> None:
    """For example a provider's journal that another process holds."""
    one = Counting()

    async def refused(spec: EpisodeSpec) -> list[Episode]:
        raise LeaseConflict("the journal is held")

    with pytest.raises(LeaseConflict, match="journal"):
        one.player(tmp_path).play([cell("a", play=refused)])


def test_a_world_that_broke_everywhere_is_tried_again_by_the_same_command(tmp_path: Path) -> None:
    one, broken = Counting(), True

    async def play(spec: EpisodeSpec) -> list[Any]:
        return [BrokenPlay(reason="no site")] if broken else await one.play(spec)

    with pytest.raises(EnvironmentFault, match="broke in all 12"):
        one.player(tmp_path).play([cell("a", play=play)])
    broken = False
    one.player(tmp_path).play([cell("a", play=play)])
    assert len(one.played) == 12


def test_a_block_is_wider_than_the_engine() -> None:
    assert block_size(RolloutConfig(max_conversations=16)) >= 2 * 16


def test_what_playing_in_blocks_keeps_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    memory_of_blocks(["--episodes", "20", "--pages", "3"])
    assert "grown after the first tenth" in capsys.readouterr().out


# A play's key is everything that determines it and nothing else.

FOUR = ChainBenchmark(num_tasks=4, length=2)
SPEC = EpisodeSpec(task=Task(task_id="t-1", goal="open it", payload={"n": 1}), seed=1, condition="noisy", split="train")


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
    on, played = chain_stage(FOUR, (0.7, None), 0.9), list[str]()

    async def play(spec: EpisodeSpec) -> list[Episode]:
        played.append(spec.task.task_id)
        return [await on.world.start(spec).finish(on.small, on.waves)]

    cell, player = Cell(what="all", specs=specs(FOUR, 4), play=play, kinds=(Episode,)), MemoryPlayer(on.waves)
    player.play([cell, replace(cell, specs=list(reversed(cell.specs)))])
    assert sorted(played) == [spec.task.task_id for spec in cell.specs]
    assert [episode.metadata.task_id for (episode,) in player.records(cell)] == [s.task.task_id for s in cell.specs]


def test_a_cell_in_which_nothing_was_measured_is_a_fault_of_the_world() -> None:
    on = chain_stage(FOUR, (0.7, None), 0.9)

    async def play(spec: EpisodeSpec) -> list[Any]:
        broke = spec.task.task_id != first or everywhere
        return [BrokenPlay(reason="the site is gone")] if broke else [SPEC.task]

    some = specs(FOUR, 4)
    first, everywhere = some[0].task.task_id, False
    cell = Cell(what="all", specs=some, play=play, kinds=())
    assert list(measured(cell, MemoryPlayer(on.waves))) == [[SPEC.task]]
    everywhere = True
    with pytest.raises(EnvironmentFault, match=r"broke in all 4 episodes, first: the site is gone; .*check-env"):
        MemoryPlayer(on.waves).play([cell])


def too_long(request: Request) -> bool:
    """True for contexts of every second corridor, from the third door on."""
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
    if play is not corruptions:  # it passes its faulty episodes to the stage
        assert "episodes=3/6 first_reason=no answer: 400 the context is too long" in caplog.text


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


# Held blocks: leased until their plays have ended.

A, B = "0" * 32, "1" * 32


def test_a_block_is_given_back_with_its_last_play(tmp_path: Path) -> None:
    path = tmp_path / "own" / "block.lease"
    with HeldBlocks(EpisodeCache(tmp_path, "own")) as held:
        assert held.take("block") and not HeldBlocks(EpisodeCache(tmp_path, "own")).take("block")
        held.set_missing("block", [A, B])
        held.end("block", A)
        assert holder(path) is not None and held.plays == 1
        held.end("block", B)
        assert holder(path) is None and held.plays == 0
        assert held.take("block")
        held.set_missing("block", [])
        assert holder(path) is None, "somebody else has played all of it"


def test_what_ends_the_run_gives_everything_back(tmp_path: Path) -> None:
    paths = [tmp_path / "own" / "one.lease", tmp_path / "own" / "two.lease"]
    with pytest.raises(KeyError), HeldBlocks(EpisodeCache(tmp_path, "own")) as held:
        for path in paths:
            held.take(path.stem)
        held.set_missing("one", [A])
        raise KeyError
    assert [holder(path) for path in paths] == [None, None]


def test_who_waits_goes_on_when_a_play_ends(tmp_path: Path) -> None:
    waves, order = Waves(workers=1), list[str]()
    with HeldBlocks(EpisodeCache(tmp_path, "own")) as held:
        held.take("block")
        held.set_missing("block", [A, B])

        async def waiting() -> None:
            await held.wait(waves)
            order.append("went on")

        async def playing() -> None:
            await waves.world(int)
            order.append("ended")
            held.end("block", A)

        waves.run([waiting, partial(playing), waiting])
    assert order == ["ended", "went on", "went on"]


# Workers: the number of processes that play an attempt.


def test_the_living_are_counted_and_the_dead_taken_away(tmp_path: Path) -> None:
    dead = tmp_path / "player-dead.lease"
    dead.mkdir()
    (dead / replace(Owner.here(), started="1").filename).touch()
    with working_in(tmp_path) as one:
        assert one() == 1 and not dead.exists()
        with working_in(tmp_path) as other:
            assert (one(), other()) == (2, 2)
        assert one() == 1
    assert not list(tmp_path.iterdir())
