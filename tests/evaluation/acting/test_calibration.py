"""Thresholds of all methods and points are searched for together and come out as one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from r2v.data.episode import Episode
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EmptyResult
from r2v.evaluation.acting.calibration import (
    CalibrationPlay,
    choose_scores,
    operating_point_of,
    place_thresholds,
    played_at,
)
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.work_queue import Cell
from r2v.router.escalation import SCORE_ONLY
from r2v.router.thresholds import FEWEST_TASKS, PlacedScore, ScoreChoice, match_rate
from tests.chains import chain_stage, looks_hard, random_gate, specs
from tests.rollouts import MemoryPlayer

CHAIN = ChainBenchmark(num_tasks=30, length=4, hard=2)
GATES = {"random_router": random_gate, "r2v": looks_hard}
SPECS = specs(CHAIN, 30)


@dataclass
class Runner:
    """What calibration needs of a `MethodRunner`, on the chain."""

    player: MemoryPlayer
    on: Any
    gates: Any = field(default_factory=lambda: GATES)

    def cell(self, method: str, some: list[EpisodeSpec], tau: float, what: str = "") -> Cell:
        actor = self.on.routed(self.gates[method], tau)

        async def play(spec: EpisodeSpec) -> list[Episode]:
            return [await self.on.world.start(spec).finish(actor, self.on.waves)]

        return Cell(what=what, specs=some, play=play, kinds=(Episode,), identity={"method": method, "tau": tau})


@pytest.fixture
def runner() -> Any:
    on = chain_stage(CHAIN, (0.9, 0.3), 0.95)
    return Runner(MemoryPlayer(on.waves), on)


def test_no_search_ends_farther_from_its_target_than_alone(runner: Any) -> None:
    targets = {(method, f"b{rate}"): rate for method in GATES for rate in (0.1, 0.3, 0.6)}
    found = place_thresholds(runner, SPECS, targets)
    for (method, point), rate in targets.items():
        cell = runner.cell(method, SPECS, SCORE_ONLY)
        runner.player.play([cell])
        scores = [score for (e,) in runner.player.records(cell) for score in CalibrationPlay.of(e).scores]
        alone = match_rate(lambda tau, method=method: played_at(runner, method, SPECS, tau), scores, rate)  # type: ignore[misc]
        realised = found[method, point].outcome.llm_call_rate
        assert alone.outcome.llm_call_rate <= realised <= rate + 0.005


def test_a_round_of_all_searches_is_one_set_of_cells(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    play = MemoryPlayer.play

    def counted(self: MemoryPlayer, cells: Any, what: str = "") -> None:
        rounds.append(len(cells))
        play(self, cells, what)

    monkeypatch.setattr(MemoryPlayer, "play", counted)
    place_thresholds(runner, SPECS, {("random_router", f"b{rate}"): rate for rate in (0.1, 0.3, 0.6)})
    assert rounds[:2] == [1, 3] and len(rounds) <= 9 and max(rounds) == 3


def test_r2v_acts_by_the_score_that_calibration_tasks_prefer() -> None:
    """r2v draws lots and an alternative sees where the small policy fails, so that is what acts; with too few tasks,
    or where both see it, r2v's own score does."""
    chain = ChainBenchmark(num_tasks=FEWEST_TASKS, length=4, hard=2)
    on = chain_stage(chain, (0.9, 0.3), 0.95)
    some = specs(chain, FEWEST_TASKS)

    def chosen(ours: Any, count: int) -> dict[str, ScoreChoice]:
        runner: Any = Runner(MemoryPlayer(on.waves), on, gates={"r2v": ours, "disagreement_router": looks_hard})
        placed = place_thresholds(runner, some[:count], {("r2v", "b0.50"): 0.5})["r2v", "b0.50"]
        own = {"b0.50": PlacedScore(tau=placed.tau, outcome=placed.outcome)}
        return choose_scores(runner, some[:count], own, ["disagreement_router"])

    choice = chosen(random_gate, FEWEST_TASKS)["b0.50"]
    compared = choice.compared["disagreement_router"]
    assert choice.score == "disagreement_router" and compared.difference > max(0.03, compared.standard_error)
    assert compared.outcome.cost <= 1.02 * choice.own.outcome.cost
    assert chosen(looks_hard, FEWEST_TASKS)["b0.50"].score == "r2v"
    assert chosen(random_gate, FEWEST_TASKS - 1) == {}


def test_what_the_world_broke_is_not_counted() -> None:
    plays = [
        CalibrationPlay(steps=4, llm_calls=1, cost=0.5, success=True),
        CalibrationPlay(steps=2, llm_calls=2, cost=1.5, success=False),
        CalibrationPlay(steps=9, llm_calls=9, cost=9.0, success=False, env_fault="gone"),
    ]
    point = operating_point_of(plays)
    assert (point.llm_call_rate, point.cost, point.success) == (0.5, 1.0, 0.5)
    with pytest.raises(EmptyResult, match="all calibration episodes ended"):
        operating_point_of(plays[2:])
