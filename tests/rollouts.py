"""Roll-outs of the tests: models as arguments, in memory unless a player is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from r2v.config import CandidatesConfig
from r2v.data.episode import Episode, to_dict
from r2v.llm.waves import Waves
from r2v.policy.candidates import CandidateState
from r2v.rollout.actors import GreedyActor, Scorer
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.rollout.stage_rollouts.candidates import CandidateRollout, FoldOf
from r2v.rollout.stage_rollouts.corruptions import CorruptionRollout
from r2v.rollout.stage_rollouts.features import FeatureRollout, rows_of
from r2v.rollout.work_queue import BlockPlayer, Cell, measured, play_and_keep, require_measured
from r2v.router.labels import FeatureRow
from r2v.verifier.labels import ExecutedAction


class MemoryPlayer:
    """A player that keeps its episodes in memory, for as long as it lives."""

    def __init__(self, waves: Waves) -> None:
        self._waves = waves
        self._played: dict[str, Sequence[Any]] = {}

    def play(self, cells: Sequence[Cell], what: str = "") -> None:
        """Play all cells in one run of the engine."""
        missing = {
            key: (cell, spec)
            for cell in cells
            for key, spec in zip(cell.play_keys(), cell.specs, strict=True)
            if key not in self._played
        }
        keep = self._played.__setitem__
        self._waves.run(partial(play_and_keep, key, cell, spec, keep) for key, (cell, spec) in missing.items())
        for cell in cells:
            require_measured(self.records(cell))

    def records(self, cell: Cell) -> Iterator[Sequence[Any]]:
        """Return the recorded episodes of a cell."""
        return (self._played[key] for key in cell.play_keys())

    def plain_episodes(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """Return the episodes of a cell as JSON values."""
        return (to_dict(first) for first, *_ in self.records(cell))


Player = BlockPlayer | MemoryPlayer


def play_candidates(
    specs: Sequence[EpisodeSpec],
    world: RolloutWorld,
    slm: GreedyActor,
    teacher: GreedyActor | None,
    scorers: Sequence[Scorer],
    folds: FoldOf,
    sampling: CandidatesConfig,
    waves: Waves,
    *,
    continuation: GreedyActor | None = None,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
    player: Player | None = None,
    faults: list[str] | None = None,
) -> list[CandidateState]:
    """Return the states of a candidate roll-out, continued by the small policy unless another is given. The reason why
    an episode has none is added to `faults`."""
    rollout = CandidateRollout(
        world=world,
        slm=slm,
        teacher=teacher,
        continuation=continuation or slm,
        scorers=scorers,
        folds=folds,
        sampling=sampling,
        waves=waves,
    )
    cell = rollout.cell(specs, what=what, identity=identity)
    return [state for states in measured(cell, player or MemoryPlayer(waves), faults) for state in states]


def roll_out_features(
    specs: Sequence[EpisodeSpec],
    world: RolloutWorld,
    slm: GreedyActor,
    llm: GreedyActor,
    extractor: FeatureExtractor,
    waves: Waves,
    *,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
    player: Player | None = None,
    faults: list[str] | None = None,
) -> list[FeatureRow]:
    """Return the rows of a feature roll-out. The reason why an episode has none is added to `faults`."""
    rollout = FeatureRollout(world=world, slm=slm, llm=llm, extractor=extractor, waves=waves)
    cell = rollout.cell(specs, what=what, identity=identity)
    return list(rows_of(measured(cell, player or MemoryPlayer(waves), faults)))


def play_corruptions(
    specs: Sequence[EpisodeSpec],
    world: RolloutWorld,
    teacher: GreedyActor,
    waves: Waves,
    *,
    per_episode: int,
    discount: float,
    what: str = "",
    identity: Mapping[str, Any] | None = None,
    player: Player | None = None,
) -> tuple[list[Episode], list[ExecutedAction]]:
    """Return the episodes and the actions of a corruption roll-out."""
    rollout = CorruptionRollout(world=world, teacher=teacher, waves=waves, per_episode=per_episode, discount=discount)
    cell, player = rollout.cell(specs, what=what, identity=identity), player or MemoryPlayer(waves)
    player.play([cell], what)
    episodes = list(player.records(cell))
    return [episode for episode, *_ in episodes], [record for _, *records in episodes for record in records]
