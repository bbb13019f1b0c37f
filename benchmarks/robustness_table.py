"""Robustness gap: each method's loss from clean to noisy and to shift, from the pieces of `benchmarks.students`.

    python -m benchmarks.robustness_table [--pieces benchmarks/outcomes/training_seeds] [--point 0.2]

Tasks, worlds and thresholds are the same under all three conditions, so the gap is paired: clean success less success
under the other condition, the mean over students and tasks with a 95 % bootstrap over both. The next column is how much
less r2v loses.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.placing import MAIN_POINT, POINTS
from benchmarks.student_pieces import DRAWS, Piece, generator_of
from benchmarks.students import OUTCOMES
from r2v.config.methods import OURS
from r2v.errors import UsageError
from r2v.evaluation.measures.statistics import FloatArray, percentile_interval

OTHERS = ("noisy", "shift")
ENDS = ("slm_only", "llm_only")


def solved(pieces: Sequence[Piece], condition: str, method: str, point: str) -> FloatArray:
    """Return 1 for success, (students, tasks)."""
    cells = [piece.cells[condition, method, "" if method in ENDS else point]["success"] for piece in pieces]
    if len({len(cell) for cell in cells}) > 1:
        raise UsageError(f"{condition}: pieces of unlike numbers of tasks; make them alike")
    return np.array([[digit == "1" for digit in cell] for cell in cells], float)


def drawn(values: FloatArray) -> FloatArray:
    """Return the mean of (students, tasks), then its mean in every draw of students and of tasks, (1 + DRAWS,)."""
    students, tasks = values.shape
    draw = generator_of(students * tasks)
    by_student = draw.multinomial(students, [1 / students] * students, size=DRAWS) / students
    by_task = draw.multinomial(tasks, [1 / tasks] * tasks, size=DRAWS) / tasks
    return np.concatenate([[values.mean()], np.einsum("ds,st,dt->d", by_student, values, by_task)])


def table(pieces: dict[str, list[Piece]], point: str) -> list[str]:
    """Return a row for each method, those that lose least under the first of the other conditions first."""
    others = [name for name in OTHERS if pieces.get(name)]
    methods = dict.fromkeys(method for at, method, cell_at in pieces["clean"][0].cells if cell_at == point)
    gaps = {
        (method, other): solved(pieces["clean"], "clean", method, point) - solved(pieces[other], other, method, point)
        for method in (*methods, *ENDS)
        for other in others
    }
    heads = [f"{other}: loses | r2v loses less by" for other in others]
    rows = [f"| method | clean | {' | '.join(heads)} |", "|" + "---|" * (2 + 2 * len(others))]
    for method in sorted(dict.fromkeys(name for name, _ in gaps), key=lambda name: gaps[name, others[0]].mean()):
        cells = [f"{solved(pieces['clean'], 'clean', method, point).mean():.3f}"]
        for other in others:
            cells.append(_told(drawn(gaps[method, other])))
            cells.append("" if method == OURS else _told(drawn(gaps[method, other] - gaps[OURS, other])))
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return rows


def _told(draws: FloatArray) -> str:
    bounds = percentile_interval(draws[1:])
    return f"{draws[0]:+.3f}" + ("" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pieces", type=Path, default=OUTCOMES)
    parser.add_argument("--point", choices=POINTS, default=MAIN_POINT, help="r2v's share of LLM steps")
    arguments = parser.parse_args()
    pieces = {
        condition: [Piece.read(path) for path in sorted(arguments.pieces.glob(f"student-*-{condition}.jsonl.zst"))]
        for condition in ("clean", *OTHERS)
    }
    if not pieces["clean"] or not any(pieces[other] for other in OTHERS):
        raise SystemExit(
            f"{arguments.pieces}: no pieces of clean and another condition (python -m benchmarks.students)"
        )
    print("\n".join(table(pieces, arguments.point)))


if __name__ == "__main__":
    main()
