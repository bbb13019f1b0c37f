"""Tables of benchmarks.students, from the finished pieces.

    python -m benchmarks.students_table [--condition noisy] [--pieces benchmarks/outcomes/training_seeds]
    python -m benchmarks.students_table --condition noisy --pieces FOLDER FURTHER    # the same students on more tasks

For each condition: APGR over USD as billed (the interquartile mean over training seeds, with a 95 % bootstrap over
seeds and tasks, arXiv 2108.13264), r2v's lead with its interval, Holm's p over all baselines, the least lead that these
seeds and tasks show with 80 % power, and the number of seeds in which the lead's interval over tasks excludes 0. Then
success at each of r2v's points for r2v's own dollars, interpolated between the neighbouring points of a method's curve;
the least and the most of a method's dollars over r2v's on calibration tasks, where it was placed; and the share of
episodes whose actions are r2v's, over all points and at the main one. From pieces with recorded perturbations, attack
success by canary and success by category of perturbation. Below: dollars at equal success and non-inferiority at each
point (`benchmarks/headline_figures.py`); the multi-step oracle, the best success for the same dollars that a search
over a few LLM steps per episode finds, on its own tasks; the parts of r2v beside their replacements; and each aim with
its verdict (`benchmarks/study_aims.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.hazards_table import hazards_table
from benchmarks.headline_figures import Curves, headline_tables
from benchmarks.placing import MAIN_POINT, POINTS
from benchmarks.rivals import BLEND, CASE_SUPPORT, GAIN, WITH_CASES, WITHOUT, is_part
from benchmarks.student_pieces import DRAWS, Piece, bounds, drawn_seeds, generator_of, joined, resamples
from benchmarks.students import OUTCOMES
from benchmarks.study_aims import aim_lines
from r2v.config.methods import OURS
from r2v.evaluation.measures.statistics import FloatArray, holm, minimum_detectable_difference, percentile_interval

ORACLE_DRAWS = 1000
PLANNED = 5
"""Students of the final table."""
REFERENCE = "entropy"
PARTS = (
    ("verifier, as a threshold instead of entropy", "verifier", "entropy"),
    ("labels by value instead of disagreement, same states and model", "r2v", "disagreement"),
    ("rounds and boosting instead of round 0 and logistic", "r2v", "round 0 alone"),
    ("choice per budget instead of the blend at each", "r2v", BLEND),
    ("blend with disagreement instead of the gain alone", BLEND, GAIN),
    ("case support among the features", WITH_CASES, BLEND),
    ("case support alone instead of entropy", CASE_SUPPORT, "entropy"),
)
"""Learned parts: name, the method with it, the method with its replacement."""

GROUP = "features of the group "


def iqm(values: FloatArray) -> FloatArray:
    """Return the interquartile mean over the first axis: the mean of its middle half, with fractions at the borders."""
    ordered, count = np.sort(values, axis=0), len(values)
    weights = np.array([min(i + 1, 0.75 * count) - max(i, 0.25 * count) for i in range(count)]).clip(0)
    return np.asarray(np.tensordot(weights / weights.sum(), ordered, axes=1))


def over_students(values: FloatArray) -> FloatArray:
    """Return the interquartile mean of (students, 1 + draws) over the students that the estimate and each draw hold."""
    return iqm(np.take_along_axis(values, drawn_seeds(len(values)).T, axis=0))


def areas_of(
    pieces: Sequence[Piece], condition: str, methods: Sequence[str]
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the APGR of each method, and r2v's lead over it, (students, 1 + draws) each."""
    counts = resamples(pieces, condition)
    areas = {method: np.stack([piece.areas(condition, method, counts) for piece in pieces]) for method in methods}
    return areas, {method: areas[OURS] - area for method, area in areas.items() if method != OURS}


def table(pieces: Sequence[Piece], condition: str, planned: int = PLANNED, sized: bool = False) -> list[str]:
    """Return the lines of a condition's table; `sized`: with the aims on the size of leads. Raises UsageError for
    pieces with different numbers of tasks."""
    counts = resamples(pieces, condition)
    methods = list(dict.fromkeys(method for at, method, point in pieces[0].cells if at == condition and point))
    areas, each = areas_of(pieces, condition, methods)
    leads = {method: over_students(values) for method, values in each.items()}
    compared = {method: drawn for method, drawn in leads.items() if not is_part(method)}
    p = holm([min(1.0, 2 * min((d[1:] <= 0).mean(), (d[1:] >= 0).mean()) + 1 / DRAWS) for d in compared.values()])
    adjusted = dict(zip(compared, p, strict=True))
    numbers = ", ".join(str(piece.head["student"]) for piece in pieces)
    rows = [
        f"{condition}: {len(pieces)} of {planned} training seeds ({numbers}), {counts.shape[1]} tasks; slm_only "
        + _ends(pieces, condition, "slm_only", counts)
        + ", llm_only "
        + _ends(pieces, condition, "llm_only", counts),
        "",
        "| method | APGR | r2v leads by | Holm's p | detectable | seeds ahead | "
        + " | ".join(f"at r2v's {point}" for point in POINTS)
        + f" | placed at | same episodes | at {MAIN_POINT} |",
        "|" + "---|" * (9 + len(POINTS)),
    ]
    for method in sorted(methods, key=lambda name: -over_students(areas[name])[0]):
        own = over_students(areas[method])
        cells = [f"{own[0]:.3f} {bounds(own[1:])}", "", "", "", ""]
        if method != OURS:
            lead = leads[method]
            cells[1:] = [
                f"{lead[0]:+.3f} {bounds(lead[1:])}",
                _p_value(adjusted[method]) if method in adjusted else "",
                f"{minimum_detectable_difference(float(lead[1:].std())):.3f}",
                _counted(*ahead(each[method]), len(pieces)),
            ]
        at = [_success(pieces, condition, method, point, counts) for point in POINTS]
        beside = [_placed(pieces, method), *_alike(pieces, condition, method)]
        rows.append(f"| {method} | {' | '.join(cells)} | {' | '.join(at)} | {' | '.join(beside)} |")
    curves = Curves.of(pieces, condition, [OURS, *compared])
    return [
        *rows,
        "",
        *headline_tables(curves, len(pieces)),
        *oracle(pieces, condition)[1],
        *_part_lines(parts_of(pieces, condition)),
        *hazards_table(pieces, condition, methods),
        *aim_lines(compared, curves, condition, sized=sized, complete=len(pieces) >= planned),
    ]


@dataclass(frozen=True)
class Part:
    """A part of r2v and its replacement: the gain in APGR, in the estimate and in every draw."""

    name: str
    lead: FloatArray
    seeds_ahead: str

    @property
    def earns_its_place(self) -> bool:
        """True if the interval is above 0."""
        interval = percentile_interval(self.lead[1:])
        return interval is not None and interval[0] > 0


def parts_of(pieces: Sequence[Piece], condition: str) -> list[Part]:
    """Return the parts of `PARTS` and the groups of features that were played with and without."""
    methods = {method for at, method, point in pieces[0].cells if at == condition and point}
    whole = BLEND if BLEND in methods else OURS  # groups are left out of the score that is fitted, not of the choice
    groups = [(f"{GROUP}{name.removeprefix(WITHOUT)}", whole, name) for name in methods if name.startswith(WITHOUT)]
    parts = []
    for name, with_it, without in [*PARTS, *sorted(groups)]:
        if {with_it, without} <= methods:
            areas, _ = areas_of(pieces, condition, [OURS, with_it, without])
            leads = areas[with_it] - areas[without]
            parts.append(Part(name, over_students(leads), _counted(*ahead(leads), len(pieces))))
    return parts


def _part_lines(parts: Sequence[Part]) -> list[str]:
    lines = [
        f"- {part.name}: earns its place: {'yes' if part.earns_its_place else 'no'}, {part.lead[0]:+.3f} "
        f"{bounds(part.lead[1:])} APGR, seeds: {part.seeds_ahead}"
        for part in parts
    ]
    return ["Parts:", "", *lines, ""] if lines else []


def groups_table(pieces: Sequence[Piece], condition: str) -> list[str]:
    """Return a row for each group of features that r2v was fitted without."""
    rows = ["| group | r2v leads by | seeds ahead | earns its place |", "|---|---|---|---|"]
    groups = [part for part in parts_of(pieces, condition) if part.name.startswith(GROUP)]
    for part in sorted(groups, key=lambda part: -part.lead[0]):
        verdict = "yes" if part.earns_its_place else "no"
        name, lead = part.name.removeprefix(GROUP), f"{part.lead[0]:+.3f} {bounds(part.lead[1:])}"
        rows.append(f"| {name} | {lead} | {part.seeds_ahead} | {verdict} |")
    return rows


def ahead(leads: FloatArray) -> tuple[int, int]:
    """Return the numbers of students whose lead of r2v, (students, 1 + draws), has an interval above 0, and below."""
    intervals = [bounds for bounds in (percentile_interval(lead[1:]) for lead in leads) if bounds is not None]
    return sum(low > 0 for low, _ in intervals), sum(high < 0 for _, high in intervals)


def _counted(above: int, below: int, students: int) -> str:
    return f"{above} of {students}" + (f", {below} behind" if below else "")


def _p_value(p: float) -> str:
    """Return Holm's p; the smallest that these draws can give is just below .01."""
    return "< .01" if p < 0.01 else f"{p:.2f}"


def _ends(pieces: Sequence[Piece], condition: str, method: str, counts: FloatArray) -> str:
    cost, success = np.mean(
        [[draw[0] for draw in piece.means(condition, method, "", counts)] for piece in pieces], axis=0
    )
    return f"{success:.3f} for {1e3 * cost:.2f} mUSD"


def _success(pieces: Sequence[Piece], condition: str, method: str, point: str, counts: FloatArray) -> str:
    """Return success for r2v's dollars at a point, on each student's own curves; r2v's with its milli-USD."""
    ours = [[draw[0] for draw in piece.means(condition, OURS, point, counts[:1])] for piece in pieces]
    if method == OURS:
        cost, success = np.mean(ours, axis=0)
        return f"{success:.3f} for {1e3 * cost:.2f}"
    drawn = [
        piece.success_for(condition, method, np.array([usd]), counts[:1])
        for piece, (usd, _) in zip(pieces, ours, strict=True)
    ]
    return f"{np.mean(drawn):.3f}"


def _placed(pieces: Sequence[Piece], method: str) -> str:
    """Return the least and the most of a method's dollars over r2v's at placement, as means over students."""
    placed_pieces = [piece.placed(method) for piece in pieces if method in piece.head.get("thresholds", {})]
    if not placed_pieces or method == OURS:
        return ""
    ratios = np.mean(placed_pieces, axis=0)
    return f"{ratios.min():.2f} to {ratios.max():.2f}"


def _alike(pieces: Sequence[Piece], condition: str, method: str) -> tuple[str, str]:
    """Return the shares of episodes with exactly r2v's actions: over all points, and at the main one."""
    if method == OURS:
        return "", ""
    everywhere, main = (same(pieces, condition, method, points) for points in (POINTS, (MAIN_POINT,)))
    return f"{everywhere:.2f}", f"{main:.2f}"


def same(pieces: Sequence[Piece], condition: str, method: str, points: Sequence[str]) -> float:
    """Return the share of episodes, over students, tasks and points, whose actions are r2v's."""
    pairs = [
        [piece.cells[condition, name, point]["actions"] for name in (OURS, method)]
        for piece in pieces
        for point in points
    ]
    return float(np.mean([a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]))


def oracle(pieces: Sequence[Piece], condition: str) -> tuple[FloatArray, list[str]]:
    """Return r2v's share of the gap between entropy and the multi-step oracle (estimate, then draws over the oracle's
    tasks, all students together; empty if no piece has an oracle), and its lines of text."""
    oracle_pieces = [piece for piece in pieces if piece.oracle.get(condition)]
    if not oracle_pieces:
        return np.array([]), []
    count, most = len(oracle_pieces[0].oracle[condition]), len(oracle_pieces[0].oracle[condition][0])
    drawn = generator_of(count).multinomial(count, [1 / count] * count, size=ORACLE_DRAWS)
    counts = np.zeros((1 + ORACLE_DRAWS, len(oracle_pieces[0].cells[condition, OURS, POINTS[0]]["success"])))
    counts[:, :count] = np.concatenate([np.ones((1, count)), drawn])
    best, ours, theirs = (
        np.mean([area(piece) for piece in oracle_pieces], axis=0)
        for area in (
            lambda piece: _oracle_areas(piece, condition, counts),
            lambda piece: piece.areas(condition, OURS, counts),
            lambda piece: piece.areas(condition, REFERENCE, counts),
        )
    )
    rescued = [
        np.mean([[task[calls] is not None for task in piece.oracle[condition]] for piece in oracle_pieces])
        for calls in range(most)
    ]
    closed = np.where(best > theirs, (ours - theirs) / np.where(best > theirs, best - theirs, 1), np.nan)
    share = "undefined" if np.isnan(closed[0]) else f"{closed[0]:.2f} {bounds(closed[1:])}"
    line = (
        f"Multi-step oracle, the first {count} tasks: APGR {best[0]:.3f}, r2v there {ours[0]:.3f}, "
        f"{REFERENCE} {theirs[0]:.3f}: r2v closes {share} of the gap. Solvable with at most "
        + ", ".join(f"{calls}: {value:.3f}" for calls, value in enumerate(rescued))
        + " LLM steps."
    )
    return closed, [line, ""]


def _oracle_areas(piece: Piece, condition: str, counts: FloatArray) -> FloatArray:
    """Return the area under the curve of tasks' cheapest rescues in the order of their price, in every draw of
    tasks."""
    low, high = (piece.means(condition, end, "", counts) for end in ("slm_only", "llm_only"))
    tasks = piece.oracle[condition]
    slm = np.array(piece.cells[condition, "slm_only", ""]["micro_usd"][: len(tasks)], float)
    further = {
        index: max(0.0, min(usd for usd in task if usd is not None) - slm[index])
        for index, task in enumerate(tasks)
        if task[0] is None and any(usd is not None for usd in task)
    }
    order = sorted(further, key=lambda index: further[index])
    weights, total = counts[:, : len(tasks)], counts[:, : len(tasks)].sum(axis=1, keepdims=True)
    solved = weights @ np.array([float(task[0] is not None) for task in tasks])
    first = np.zeros((len(counts), 1))
    spent = np.cumsum(np.hstack([first, weights[:, order] * [further[index] for index in order]]), axis=1)
    cost = ((weights @ slm)[:, None] + spent) / total / 1e6
    success = (solved[:, None] + np.cumsum(np.hstack([first, weights[:, order]]), axis=1)) / total
    gaps = [np.where(up > down, up - down, np.nan)[:, None] for down, up in zip(low, high, strict=True)]
    x = ((cost - low[0][:, None]) / gaps[0]).clip(0, 1)
    y = (success - low[1][:, None]) / gaps[1]
    x, y = np.hstack([x, 1 + first]), np.hstack([y, np.maximum(1.0, y[:, -1:])])
    return np.asarray(np.trapezoid(y, x, axis=1))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pieces", type=Path, nargs="+", default=[OUTCOMES], help="with several folders, the students in all of them"
    )
    parser.add_argument("--condition", nargs="+", default=["noisy", "shift", "clean"])
    parser.add_argument("--planned", type=int, default=PLANNED, help="students (default: %(default)s)")
    arguments = parser.parse_args()
    for condition in arguments.condition:
        pieces = pieces_in(arguments.pieces, condition)
        for head in (piece.head for piece in pieces):
            print(f"student {head['student']}: commit {head['commit'][:7]}, CPU-s {head['cpu_seconds']}")
        if pieces:
            print("\n".join(table(pieces, condition, arguments.planned, sized=arguments.pieces == [OUTCOMES])))
        else:
            print(f"{condition}: no piece (benchmarks/students.py)")


def pieces_in(folders: Sequence[Path], condition: str) -> list[Piece]:
    """Return a condition's pieces of the students that all folders hold, joined."""
    names = [{path.name for path in folder.glob(f"student-*-{condition}.jsonl.zst")} for folder in folders]
    common = sorted(set.intersection(*names))
    return [joined([Piece.read(folder / name) for folder in folders]) for name in common]


if __name__ == "__main__":
    main()
