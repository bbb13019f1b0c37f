"""Blocks: which task lies in which, and several players of the same cells."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.blocks import main as memory_of_blocks
from r2v.config import RolloutConfig
from r2v.data.episode import Episode
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EnvironmentFault, Interrupted, LeaseConflict
from r2v.llm.waves import Waves
from r2v.rollout.blocks import BlockPlayer, block_size, blocks_of
from r2v.rollout.cells import Cell
from r2v.rollout.episode_cache import EpisodeCache
from r2v.rollout.play_lines import BrokenPlay
from r2v.rollout.players import Players
from r2v.rollout.session import EpisodeSpec
from r2v.slurm.job_record import progressed, record_at
from r2v.storage import record
from r2v.storage.lease import lease
from tests.chains import chain_stage, specs

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
    """What a job that was put back goes by: it goes on as long as each life adds an episode to what is kept."""
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
    """One process takes blocks as conversations become free; of two, neither has half of all in hand and more."""
    held = list[int]()

    def most_held(beside: int) -> int:
        one, folder = Counting(), tmp_path / f"beside-{beside}"
        held.clear()

        async def play(spec: EpisodeSpec) -> list[Episode]:
            held.append(len(list(folder.glob("stage-1/evaluation-*.lease"))))
            return await one.play(spec)

        with ExitStack() as others:
            for _ in range(beside):
                others.enter_context(Players(folder / "stage-1"))
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
    """Every stage that plays goes on like this: what is begun again are the plays that were in flight."""
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
    """Such as a provider's journal that another process holds."""
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
