"""The pieces of benchmarks.students: what a student's episodes came to, read again, joined, and resampled by task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from benchmarks.students import POINTS
from r2v.config.methods import OURS
from r2v.errors import UsageError
from r2v.evaluation.frontier import Curve
from r2v.evaluation.statistics import FloatArray, percentile_interval
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
        """Of a file."""
        text = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 28).decode()
        head, *lines = map(json.loads, text.splitlines())
        cells = {(line["condition"], line["method"], line["point"]): line for line in lines if "point" in line}
        oracle = {line["condition"]: line["micro_usd_by_calls"] for line in lines if "point" not in line}
        return cls(head, cells, oracle)

    def means(self, condition: str, method: str, point: str, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(cost in USD, success) of a cell in every draw of tasks, (draws,)."""
        cell = self.cells[condition, method, point]
        cost = np.array(cell["micro_usd"], float) / 1e6
        success = np.array([digit == "1" for digit in cell["success"]], float)
        total = counts.sum(axis=1)
        return counts @ cost / total, counts @ success / total

    def areas(self, condition: str, method: str, counts: FloatArray) -> FloatArray:
        """APGR in every draw of tasks."""
        low, high = (self.means(condition, end, "", counts) for end in ("slm_only", "llm_only"))
        drawn = [self.means(condition, method, point, counts) for point in POINTS]
        cost, success = (np.stack(axis, axis=1) for axis in zip(*drawn, strict=True))
        return Curve.through(cost, success, low, high).apgr()


def joined(parts: Sequence[Piece]) -> Piece:
    """A student's pieces of different tasks as one, of the cells and columns that all of them hold; the oracle is that
    of the first. Raises UsageError where a method was placed elsewhere: then they are different students."""
    first, *others = parts
    for other in others:
        placed, theirs = first.head["thresholds"], other.head["thresholds"]
        if odd := [name for name in placed if name in theirs and placed[name] != theirs[name]]:
            raise UsageError(f"student {first.head['student']}: {odd[0]} has other thresholds in another piece")
    cells = {}
    for key in set.intersection(*(set(part.cells) for part in parts)):
        alike = [part.cells[key] for part in parts]
        shared = [name for name in alike[0] if all(name in one for one in alike)]
        cells[key] = {name: "".join(one[name] for one in alike) for name in ("success", "obeyed") if name in shared}
        lists = [name for name in shared if isinstance(alike[0][name], list)]
        cells[key] |= {name: [value for one in alike for value in one[name]] for name in lists}
    return Piece(first.head, {key: cells[key] for key in first.cells if key in cells}, first.oracle)


def resamples(pieces: Sequence[Piece], condition: str) -> FloatArray:
    """How often each task counts: once in the estimate, then in every draw, (1 + DRAWS, tasks)."""
    sizes = {len(piece.cells[condition, OURS, POINTS[0]]["success"]) for piece in pieces}
    if len(sizes) > 1:
        raise UsageError(f"{condition}: pieces of {sorted(sizes)} tasks; one number is asked for: make them alike")
    count = sizes.pop()
    draws = generator_of(count).multinomial(count, [1 / count] * count, size=DRAWS)
    return np.concatenate([np.ones((1, count)), draws]).astype(float)


def generator_of(number: int) -> np.random.Generator:
    """Keyed draws."""
    return np.random.default_rng(seed_of("students", number))


def bounds(draws: FloatArray) -> str:
    """A 95 % interval in words; nothing without draws."""
    found = percentile_interval(draws)
    return "" if found is None else f"[{found[0]:.3f}, {found[1]:.3f}]"
