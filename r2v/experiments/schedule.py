"""Schedule: which run of an experiment is started next: the grid in its order, or early stopping's choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from r2v.experiments.asha import AshaSchedule
from r2v.experiments.expansion import Point
from r2v.experiments.records import ExperimentRecord, RunRecord
from r2v.experiments.spec import ExperimentSpec


class RunSchedule(Protocol):
    """What decides on the next run."""

    def next(self, record: ExperimentRecord, untried: Sequence[RunRecord]) -> tuple[RunRecord, str] | None:
        """The run to start now and its configuration as YAML; None where there is none, now or at all. `untried` are
        the runs that this process has not started yet."""
        ...

    def ended(self, record: ExperimentRecord, run: RunRecord) -> None:
        """A run has completed or failed."""
        ...


def schedule_of(folder: Path, spec: ExperimentSpec, points: Sequence[Point]) -> RunSchedule:
    """The schedule that a specification asks for."""
    return GridSchedule(points) if spec.asha is None else AshaSchedule(folder, spec, spec.asha, points)


class GridSchedule:
    """Every point once, in the order of the grid."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._texts = {point.identity: point.text for point in points}

    def next(self, record: ExperimentRecord, untried: Sequence[RunRecord]) -> tuple[RunRecord, str] | None:
        """The first run that is pending or has failed."""
        for run in untried:
            if run.status in ("pending", "failed") and run.identity in self._texts:
                return run, self._texts[run.identity]
        return None

    def ended(self, record: ExperimentRecord, run: RunRecord) -> None:
        """Nothing follows from it."""
