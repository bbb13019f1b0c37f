"""The tables of benchmarks.students, from the pieces that are there.

    python -m benchmarks.students_table [--condition noisy]

Of each condition: APGR over USD as billed (the interquartile mean over students, with a 95 % bootstrap over students
and tasks, arXiv 2108.13264), r2v's lead with its interval, Holm's p over all rivals, the least lead that these students
and tasks show with 80 % power, in how many students the lead's interval over tasks is off 0, success at each of the
points that cost what r2v costs, and the share of episodes whose actions are r2v's. The multi-step oracle stands below:
the best success that a search over at most three LLM steps an episode finds for so many dollars, on its own tasks.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from benchmarks.students import OUTCOMES, POINTS
from r2v.config.methods import OURS
from r2v.evaluation.frontier import Curve
from r2v.evaluation.statistics import FloatArray, holm, minimum_detectable_difference, percentile_interval
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


def iqm(values: FloatArray) -> FloatArray:
    """The interquartile mean over the first axis: the mean of its middle half, with fractions at the borders."""
    ordered, count = np.sort(values, axis=0), len(values)
    weights = np.array([min(i + 1, 0.75 * count) - max(i, 0.25 * count) for i in range(count)]).clip(0)
    return np.asarray(np.tensordot(weights / weights.sum(), ordered, axes=1))


def table(pieces: Sequence[Piece], condition: str) -> list[str]:
    """The lines of a condition's table."""
    methods = list(dict.fromkeys(method for at, method, point in pieces[0].cells if at == condition and point))
    count = len(pieces[0].cells[condition, OURS, POINTS[0]]["success"])
    rng = np.random.default_rng(seed_of("students", count))
    counts = np.concatenate([np.ones((1, count)), rng.multinomial(count, [1 / count] * count, size=DRAWS)]).astype(
        float
    )
    chosen = np.concatenate([[range(len(pieces))], rng.integers(len(pieces), size=(DRAWS, len(pieces)))])
    areas = {method: np.stack([piece.areas(condition, method, counts) for piece in pieces]) for method in methods}

    def over_students(values: FloatArray) -> FloatArray:
        return iqm(np.take_along_axis(values, chosen.T, axis=0))

    leads = {method: over_students(areas[OURS] - areas[method]) for method in methods if method != OURS}
    p = holm([min(1.0, 2 * min((d[1:] <= 0).mean(), (d[1:] >= 0).mean()) + 1 / DRAWS) for d in leads.values()])
    adjusted = dict(zip(leads, p, strict=True))
    rows = [
        f"{condition}: {len(pieces)} students, {count} tasks; slm_only "
        + _ends(pieces, condition, "slm_only", counts)
        + ", llm_only "
        + _ends(pieces, condition, "llm_only", counts),
        "",
        "| method | APGR | r2v leads by | Holm's p | detectable | students off 0 | "
        + " | ".join(f"at r2v's {point}" for point in POINTS)
        + " | same episodes |",
        "|" + "---|" * (7 + len(POINTS)),
    ]
    for method in sorted(methods, key=lambda name: -over_students(areas[name])[0]):
        own = over_students(areas[method])
        cells = [f"{own[0]:.3f} {_bounds(own[1:])}", "", "", "", ""]
        if method != OURS:
            lead, each = leads[method], areas[OURS] - areas[method]
            off = sum(bool(found and found[0] > 0) for found in (percentile_interval(one[1:]) for one in each))
            least = minimum_detectable_difference(float(lead[1:].std()))
            cells[1:] = [
                f"{lead[0]:+.3f} {_bounds(lead[1:])}",
                f"{adjusted[method]:.3f}",
                f"{least:.3f}",
                f"{off} of {len(pieces)}",
            ]
        at = [_success(pieces, condition, method, point, counts) for point in POINTS]
        rows.append(f"| {method} | {' | '.join(cells)} | {' | '.join(at)} | {_alike(pieces, condition, method)} |")
    return [*rows, "", *_oracle(pieces, condition)]


def _bounds(draws: FloatArray) -> str:
    found = percentile_interval(draws)
    return "" if found is None else f"[{found[0]:.3f}, {found[1]:.3f}]"


def _ends(pieces: Sequence[Piece], condition: str, method: str, counts: FloatArray) -> str:
    cost, success = np.mean(
        [[draw[0] for draw in piece.means(condition, method, "", counts)] for piece in pieces], axis=0
    )
    return f"{success:.3f} for {1e3 * cost:.2f} mUSD"


def _success(pieces: Sequence[Piece], condition: str, method: str, point: str, counts: FloatArray) -> str:
    found = [[draw[0] for draw in piece.means(condition, method, point, counts[:1])] for piece in pieces]
    cost, success = np.mean(found, axis=0)
    return f"{success:.3f} for {1e3 * cost:.2f}"


def _alike(pieces: Sequence[Piece], condition: str, method: str) -> str:
    if method == OURS:
        return ""
    return f"{np.mean([np.mean(_same(piece, condition, method, point)) for piece in pieces for point in POINTS]):.2f}"


def _same(piece: Piece, condition: str, method: str, point: str) -> list[bool]:
    ours, theirs = (piece.cells[condition, name, point]["actions"] for name in (OURS, method))
    return [a == b for a, b in zip(ours, theirs, strict=True)]


def _oracle(pieces: Sequence[Piece], condition: str) -> list[str]:
    """The multi-step oracle, and r2v on the oracle's tasks for the same dollars."""
    known = [piece for piece in pieces if piece.oracle.get(condition)]
    if not known:
        return []
    count, most = len(known[0].oracle[condition]), len(known[0].oracle[condition][0])
    counts = np.zeros((1, len(known[0].cells[condition, OURS, POINTS[0]]["success"])))
    counts[0, :count] = 1
    areas = [_oracle_area(piece, condition, counts) for piece in known]
    ours = [float(piece.areas(condition, OURS, counts)[0]) for piece in known]
    theirs = [float(piece.areas(condition, "entropy", counts)[0]) for piece in known]
    rescued = [
        np.mean([[task[calls] is not None for task in piece.oracle[condition]] for piece in known])
        for calls in range(most)
    ]
    gap, closed = np.mean(areas) - np.mean(theirs), np.mean(ours) - np.mean(theirs)
    share = f"{closed / gap:.2f}" if gap > 0 and not math.isnan(gap) else "undefined"
    return [
        f"Multi-step oracle, the first {count} tasks: APGR {np.mean(areas):.3f}, r2v there {np.mean(ours):.3f}, "
        f"entropy {np.mean(theirs):.3f}: r2v closes {share} of the gap. Solvable with at most "
        + ", ".join(f"{calls}: {value:.3f}" for calls, value in enumerate(rescued))
        + " LLM steps.",
        "",
    ]


def _oracle_area(piece: Piece, condition: str, counts: FloatArray) -> float:
    """Area under the curve that takes tasks' cheapest rescues in the order of their price."""
    low, high = (piece.means(condition, end, "", counts) for end in ("slm_only", "llm_only"))
    tasks = piece.oracle[condition]
    slm = np.array(piece.cells[condition, "slm_only", ""]["micro_usd"][: len(tasks)], float)
    solved = np.array([task[0] is not None for task in tasks], float)
    further = sorted(
        max(0.0, min(usd for usd in task if usd is not None) - own)
        for task, own in zip(tasks, slm, strict=True)
        if task[0] is None and any(usd is not None for usd in task)
    )
    cost = (slm.sum() + np.concatenate([[0.0], np.cumsum(further)])) / len(tasks) / 1e6
    success = (solved.sum() + np.arange(len(further) + 1)) / len(tasks)
    x, y = (cost - low[0]) / (high[0] - low[0]), (success - low[1]) / (high[1] - low[1])
    x, y = np.append(x.clip(0, 1), 1.0), np.append(y, max(1.0, y[-1]))
    return float(np.trapezoid(y, x))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pieces", type=Path, default=OUTCOMES)
    parser.add_argument("--condition", nargs="+", default=["noisy", "shift", "clean"])
    asked = parser.parse_args()
    for condition in asked.condition:
        pieces = [Piece.read(path) for path in sorted(asked.pieces.glob(f"student-*-{condition}.jsonl.zst"))]
        for head in (piece.head for piece in pieces):
            print(f"student {head['student']}: commit {head['commit'][:7]}, CPU-s {head['cpu_seconds']}")
        print("\n".join(table(pieces, condition)) if pieces else f"{condition}: no piece (benchmarks/students.py)")


if __name__ == "__main__":
    main()
