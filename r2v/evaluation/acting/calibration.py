"""Calibration plays: calibration tasks, executed under the thresholds that searches ask for, and kept.

plays = ExecutedPlays(runner, specs)
found = place_thresholds(plays, {("entropy_router", "b0.10"): 0.1, ...})
plays.write(folder)                     # read again by `r2v.evaluation.calibration.RecordedPlays`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from r2v.data.episode import Episode, to_line, with_hashed_observations
from r2v.evaluation.acting.methods import MethodRunner
from r2v.evaluation.calibration import THRESHOLD, CalibrationPlay, plays_path
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.work_queue import Cell
from r2v.storage.files import write_lines


@dataclass
class ExecutedPlays:
    """Plays of routed methods on calibration tasks (`r2v.evaluation.calibration.Plays`), each executed once."""

    runner: MethodRunner
    specs: Sequence[EpisodeSpec]
    cells: dict[tuple[str, float], Cell] = field(default_factory=dict)
    """By (method, threshold), of all that was asked for."""
    found: dict[tuple[str, float], list[CalibrationPlay]] = field(default_factory=dict)

    def __call__(self, requests: Sequence[tuple[str, float]]) -> list[list[CalibrationPlay]]:
        """Play the episodes that are not yet in the episode cache, and read all of them."""
        new = {request: self._cell(*request) for request in requests if request not in self.found}
        if new:
            self.runner.player.play(list(new.values()), "calibration")
        for request, cell in new.items():
            self.found[request] = [CalibrationPlay.of(episode) for (episode,) in self.runner.player.records(cell)]
        self.cells |= new
        return [self.found[request] for request in requests]

    def write(self, folder: Path) -> None:
        """Write the episodes of each method into a file, by task and seed, then by threshold."""
        for method in dict.fromkeys(method for method, _ in self.cells):
            taus = sorted(tau for name, tau in self.cells if name == method)
            columns = [self.runner.player.plain_episodes(self.cells[method, tau]) for tau in taus]
            rows = zip(*columns, strict=True)
            write_lines(plays_path(folder, method), (to_line(episode) for row in rows for episode in row))

    def _cell(self, method: str, tau: float) -> Cell:
        specs = [replace(spec, extra={**spec.extra, THRESHOLD: tau}) for spec in self.specs]
        cell = self.runner.cell(method, specs, tau, what=f"{method} at threshold {tau:.3f}")

        async def play(spec: EpisodeSpec) -> list[Episode]:
            return [with_hashed_observations(episode) for episode in await cell.play(spec)]

        return replace(cell, play=play, identity={**cell.identity, "play": "calibration, observations hashed"})


def played_cell(runner: MethodRunner, method: str, specs: Sequence[EpisodeSpec]) -> Cell:
    """A method without a threshold on calibration tasks, whose plays are reduced to the counted figures."""
    cell = runner.cell(method, specs)

    async def play(spec: EpisodeSpec) -> list[CalibrationPlay]:
        return [CalibrationPlay.of(episode) for episode in await cell.play(spec)]

    return replace(cell, play=play, kinds=(CalibrationPlay,), identity={**cell.identity, "play": "counted"})
