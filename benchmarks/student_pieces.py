"""Pieces of benchmarks.students: recorded outcomes of a student's episodes, read, joined, and resampled by task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks.placing import POINTS
from r2v.config.methods import OURS
from r2v.errors import UsageError
from r2v.evaluation.measures.frontier import Curve
from r2v.evaluation.measures.statistics import FloatArray, percentile_interval
from r2v.randomness import seed_of

DRAWS = 2000


@dataclass(frozen=True)
class Piece:
    """A student's outcomes: its head, and its cells by condition, method and point."""

    head: dict[str, Any]
    cells: dict[tuple[str, str, str], dict[str, Any]]
    oracle: dict[str, list[list[int | None]]]

    @classmethod
    def read(cls, path: Path) -> Piece:
        """Load a piece from a file."""
        text = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 28).decode()
        head, *lines = map(json.loads, text.splitlines())
        cells = {(line["condition"], line["method"], line["point"]): line for line in lines if "point" in line}
        oracle = {line["condition"]: line["micro_usd_by_calls"] for line in lines if "point" not in line}
        return cls(head, cells, oracle)

    def means(self, condition: str, method: str, point: str, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (cost in USD, success) of a cell in every draw of tasks, (draws,)."""
        cell = self.cells[condition, method, point]
        cost = np.array(cell["micro_usd"], float) / 1e6
        success = np.array([digit == "1" for digit in cell["success"]], float)
        total = counts.sum(axis=1)
        return counts @ cost / total, counts @ success / total

    def curve(self, condition: str, method: str, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (costs, successes) of the small policy alone, the method's points and the LLM alone, (draws, points +
        2)."""
        keys = [("slm_only", ""), *((method, point) for point in POINTS), ("llm_only", "")]
        drawn = [self.means(condition, *key, counts) for key in keys]
        cost, success = (np.stack(axis, axis=1) for axis in zip(*drawn, strict=True))
        return cost, success

    def success_for(self, condition: str, method: str, usd: FloatArray, counts: FloatArray) -> FloatArray:
        """Return the success for `usd` per episode, interpolated between a method's two neighbouring points, in every
        draw of tasks, (draws,)."""
        cost, success = self.curve(condition, method, counts)
        return interpolated(cost, success, usd)

    def placed(self, method: str) -> list[float]:
        """Return the method's cost on calibration tasks over r2v's, by operating point."""
        own, ours = self.head["thresholds"][method], self.head["thresholds"][OURS]
        return [own_point["cost"] / other["cost"] for own_point, other in zip(own, ours, strict=True)]

    def areas(self, condition: str, method: str, counts: FloatArray) -> FloatArray:
        """Return the APGR in every draw of tasks."""
        cost, success = self.curve(condition, method, counts)
        low, high = ((cost[:, end], success[:, end]) for end in (0, -1))
        return Curve.through(cost[:, 1:-1], success[:, 1:-1], low, high).apgr()


def interpolated(cost: FloatArray, success: FloatArray, usd: FloatArray) -> FloatArray:
    """Return the success at `usd`, (draws,), on the lines through points (draws, points) in the order of their cost."""
    cost, success = _by_cost(cost, success)
    right = (cost <= usd[:, None]).sum(axis=1).clip(1, cost.shape[1] - 1)[:, None]
    (x0, x1), (y0, y1) = (
        [np.take_along_axis(axis, right - before, axis=1)[:, 0] for before in (1, 0)] for axis in (cost, success)
    )
    share = (usd - x0) / np.where(x1 > x0, x1 - x0, 1.0)
    return np.asarray(y0 + np.where(x1 > x0, share, 1.0).clip(0, 1) * (y1 - y0))


def dollars_at(cost: FloatArray, success: FloatArray, level: float) -> FloatArray:
    """Return the least dollars, (draws,), at which the lines through points (draws, points) in the order of their cost
    reach this success; NaN if they never do."""
    cost, success = _by_cost(cost, success)
    rise = np.diff(success, axis=1)
    share = (level - success[:, :-1]) / np.where(rise > 0, rise, np.nan)
    crossing = np.where((share >= 0) & (share <= 1), cost[:, :-1] + share * np.diff(cost, axis=1), np.nan)
    reached = np.hstack([np.where(success[:, :1] >= level, cost[:, :1], np.nan), crossing])
    first = np.argmax(np.isfinite(reached), axis=1)[:, None]
    return np.asarray(np.take_along_axis(reached, first, axis=1)[:, 0])


def _by_cost(cost: FloatArray, success: FloatArray) -> tuple[FloatArray, FloatArray]:
    order = np.lexsort((success, cost))
    return np.take_along_axis(cost, order, axis=1), np.take_along_axis(success, order, axis=1)


def joined(parts: Sequence[Piece]) -> Piece:
    """Join a student's pieces of different tasks, with the cells and columns that all of them hold; the oracle is that
    of the first. Raises UsageError if thresholds differ: then they are different students."""
    first, *others = parts
    for other in others:
        placed, theirs = first.head["thresholds"], other.head["thresholds"]
        if odd := [name for name in placed if name in theirs and placed[name] != theirs[name]]:
            raise UsageError(f"student {first.head['student']}: {odd[0]} has other thresholds in another piece")
    cells = {}
    for key in set.intersection(*(set(part.cells) for part in parts)):
        alike = [part.cells[key] for part in parts]
        shared = [name for name in alike[0] if all(name in part_cell for part_cell in alike)]
        cell: dict[str, Any] = {}
        for name in shared:
            if name in ("success", "obeyed"):
                cell[name] = "".join(part_cell[name] for part_cell in alike)
            elif isinstance(alike[0][name], list):
                cell[name] = [value for part_cell in alike for value in part_cell[name]]
        cells[key] = cell
    return Piece(first.head, {key: cells[key] for key in first.cells if key in cells}, first.oracle)


def resamples(pieces: Sequence[Piece], condition: str) -> FloatArray:
    """Return each task's count: once in the estimate, then in every draw, (1 + DRAWS, tasks)."""
    sizes = {len(piece.cells[condition, OURS, POINTS[0]]["success"]) for piece in pieces}
    if len(sizes) > 1:
        raise UsageError(f"{condition}: pieces of {sorted(sizes)} tasks; one number is asked for: make them alike")
    count = sizes.pop()
    draws = generator_of(count).multinomial(count, [1 / count] * count, size=DRAWS)
    return np.concatenate([np.ones((1, count)), draws]).astype(float)


def drawn_seeds(count: int) -> NDArray[np.int64]:
    """Return the weights of training seeds: all in the estimate, then those of every draw, (1 + DRAWS, seeds)."""
    draws = generator_of(-count).integers(count, size=(DRAWS, count))
    return np.concatenate([[range(count)], draws])


def generator_of(number: int) -> np.random.Generator:
    """Return a NumPy generator with a keyed seed."""
    return np.random.default_rng(seed_of("students", number))


def bounds(draws: FloatArray) -> str:
    """Return a 95 % interval in words; "" without draws."""
    interval = percentile_interval(draws)
    return "" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]"
