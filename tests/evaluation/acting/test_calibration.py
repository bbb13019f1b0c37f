"""Thresholds of all methods and points are searched together, with the same results as one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from r2v.data.episode import Episode
from r2v.data.store import StoredEpisodes
from r2v.envs.chain import ChainBenchmark
from r2v.errors import InputError
from r2v.evaluation.acting.calibration import ExecutedPlays
from r2v.evaluation.calibration import RecordedPlays, choose_scores, place_thresholds, played_at, plays_path
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
    """The part of a `MethodRunner` that calibration needs, on the chain."""

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
    plays = ExecutedPlays(runner, SPECS)
    found = place_thresholds(plays, targets)
    for (method, point), rate in targets.items():
        scores = [score for play in plays([(method, SCORE_ONLY)])[0] for score in play.scores]
        alone = match_rate(lambda tau, method=method: played_at(plays, method, tau), scores, rate)  # type: ignore[misc]
        realised = found[method, point].outcome.llm_call_rate
        assert alone.outcome.llm_call_rate <= realised <= rate + 0.005


def test_a_round_of_all_searches_is_one_set_of_cells(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    play = MemoryPlayer.play

    def counted(self: MemoryPlayer, cells: Any, what: str = "") -> None:
        rounds.append(len(cells))
        play(self, cells, what)

    monkeypatch.setattr(MemoryPlayer, "play", counted)
    place_thresholds(ExecutedPlays(runner, SPECS), {("random_router", f"b{rate}"): rate for rate in (0.1, 0.3, 0.6)})
    assert rounds[:2] == [1, 3] and len(rounds) <= 9 and max(rounds) == 3


def test_r2v_acts_by_the_score_that_calibration_tasks_prefer() -> None:
    """r2v scores at random and an alternative sees where the small policy fails, so the alternative acts; with too few
    tasks, or if both see it, r2v's own score does."""
    chain = ChainBenchmark(num_tasks=FEWEST_TASKS, length=4, hard=2)
    on = chain_stage(chain, (0.9, 0.3), 0.95)
    some = specs(chain, FEWEST_TASKS)

    def chosen(ours: Any, count: int) -> dict[str, ScoreChoice]:
        runner: Any = Runner(MemoryPlayer(on.waves), on, gates={"r2v": ours, "disagreement_router": looks_hard})
        plays = ExecutedPlays(runner, some[:count])
        placed = place_thresholds(plays, {("r2v", "b0.50"): 0.5})["r2v", "b0.50"]
        own = {"b0.50": PlacedScore(tau=placed.tau, outcome=placed.outcome)}
        return choose_scores(plays, own, ["disagreement_router"])

    choice = chosen(random_gate, FEWEST_TASKS)["b0.50"]
    compared = choice.compared["disagreement_router"]
    assert choice.score == "disagreement_router" and compared.difference > max(0.03, compared.standard_error)
    assert compared.outcome.cost <= 1.02 * choice.own.outcome.cost
    assert chosen(looks_hard, FEWEST_TASKS)["b0.50"].score == "r2v"
    assert chosen(random_gate, FEWEST_TASKS - 1) == {}


def test_what_is_written_gives_the_same_thresholds_again(runner: Any, tmp_path: Path) -> None:
    targets = {(method, f"b{rate}"): rate for method in GATES for rate in (0.1, 0.3)}
    plays = ExecutedPlays(runner, SPECS)
    placed = place_thresholds(plays, targets)
    plays.write(tmp_path)
    read = RecordedPlays.read(tmp_path, GATES)
    assert place_thresholds(read, targets) == placed and read.asked == read.found.keys() == plays.cells.keys()
    (first, *_) = list(StoredEpisodes(plays_path(tmp_path, "r2v")))
    assert re.fullmatch("[0-9a-f]{16}", first.steps[0].observation.raw_text)
    with pytest.raises(InputError, match=r"no episodes of r2v at threshold 0\.123"):
        read([("r2v", 0.123)])
