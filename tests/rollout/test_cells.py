"""A play's key is everything that determines it and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from r2v.data.episode import Episode
from r2v.envs.base import Task
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EnvironmentFault
from r2v.rollout.cells import Cell, MemoryPlayer, measured
from r2v.rollout.play_lines import BrokenPlay
from r2v.rollout.session import EpisodeSpec
from tests.chains import chain_stage, specs

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
