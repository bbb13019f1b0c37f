"""Headline figures of several training seeds: dollars at equal success, and non-inferiority at each operating point.

Printed by benchmarks.students_table, per condition. Both are read off each training seed's own curve, on the line
between neighbouring points, and averaged over seeds; intervals resample seeds and tasks.

Dollars at equal success: the least milli-USD per episode at which a method's curve reaches .60, .70 and .80, and r2v's
over it (a ratio of means). Non-inferiority: at each of r2v's points, r2v's success less the success of the baseline
for the same dollars; r2v is non-inferior there if the lower bound of the one-sided 95 % interval is above -.03.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.placing import POINTS
from benchmarks.student_pieces import Piece, bounds, dollars_at, drawn_seeds, interpolated, resamples
from r2v.config.methods import OURS
from r2v.evaluation.measures.statistics import FloatArray

LEVELS = (0.6, 0.7, 0.8)
MARGIN = 0.03


@dataclass(frozen=True)
class Curves:
    """The curves of every training seed: by method costs and successes, (seeds, 1 + draws, points + 2), and the share
    that each seed has in the estimate and in every draw, (seeds, 1 + draws)."""

    cost: dict[str, FloatArray]
    success: dict[str, FloatArray]
    shares: FloatArray

    @classmethod
    def of(cls, pieces: Sequence[Piece], condition: str, methods: Sequence[str]) -> Curves:
        """Return the curves of these methods, over draws of training seeds and tasks."""
        counts, chosen = resamples(pieces, condition), drawn_seeds(len(pieces))
        cost, success = {}, {}
        for method in methods:
            curves = [piece.curve(condition, method, counts) for piece in pieces]
            cost[method], success[method] = (np.stack(axis) for axis in zip(*curves, strict=True))
        shares = np.stack([(chosen == seed).mean(axis=1) for seed in range(len(pieces))])
        return cls(cost, success, shares)

    def mean(self, by_seed: Sequence[FloatArray]) -> FloatArray:
        """Return the mean over training seeds, (1 + draws,); a seed that was not drawn does not count."""
        weighted = np.where(self.shares > 0, self.shares * np.stack(by_seed), 0.0)
        return np.asarray(weighted.sum(axis=0))

    def dollars(self, method: str, level: float) -> FloatArray:
        """Return the USD at which a method's curve reaches this success, (1 + draws,); NaN if a seed's never does."""
        both = zip(self.cost[method], self.success[method], strict=True)
        return self.mean([dollars_at(cost, success, level) for cost, success in both])

    def differences(self, method: str) -> FloatArray:
        """Return r2v's success less the method's at r2v's dollars, at each of r2v's points, (points, 1 + draws)."""
        seeds = range(len(self.shares))
        return np.stack(
            [
                self.mean([self.success[OURS][seed][:, at] - self._success(method, seed, at) for seed in seeds])
                for at in range(1, len(POINTS) + 1)
            ]
        )

    def _success(self, method: str, seed: int, at: int) -> FloatArray:
        """Return the method's success for r2v's dollars at a point."""
        return interpolated(self.cost[method][seed], self.success[method][seed], self.cost[OURS][seed][:, at])


def lower_bound(draws: FloatArray) -> float:
    """Return the lower bound of the one-sided 95 % interval."""
    return float(np.percentile(draws, 5))


def headline_tables(curves: Curves, seeds: int) -> list[str]:
    """Return both tables of a condition, as lines."""
    return [*_dollars_table(curves, seeds), *_non_inferiority_table(curves)]


def _dollars_table(curves: Curves, seeds: int) -> list[str]:
    heads = " | ".join(f"mUSD at {level:.2f} | r2v pays, of these" for level in LEVELS)
    rows = [
        f"Dollars at equal success, {seeds} training seeds:",
        "",
        f"| method | {heads} |",
        "|" + "---|" * (1 + 2 * len(LEVELS)),
    ]
    dollars = {(method, level): curves.dollars(method, level) for method in curves.cost for level in LEVELS}
    for method in sorted(curves.cost, key=lambda name: _last_if_undefined(dollars[name, LEVELS[-1]][0])):
        cells = []
        for level in LEVELS:
            usd = dollars[method, level]
            ratio = dollars[OURS, level] / usd
            reached = bool(np.isfinite(usd[0]))
            cells.append(f"{1e3 * usd[0]:.2f}" if reached else "not reached")
            cells.append("" if method == OURS or not np.isfinite(ratio[0]) else f"{ratio[0]:.2f} {bounds(ratio[1:])}")
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return [*rows, ""]


def _last_if_undefined(usd: float) -> float:
    return usd if np.isfinite(usd) else np.inf


def _non_inferiority_table(curves: Curves) -> list[str]:
    rows = [
        f"r2v's success less the baseline's at r2v's dollars; in brackets the lower bound of the one-sided 95 % "
        f"interval; non-inferior: it is above -{MARGIN:.2f}:",
        "",
        "| baseline | " + " | ".join(f"at {point}" for point in POINTS) + " | non-inferior |",
        "|" + "---|" * (2 + len(POINTS)),
    ]
    for method in curves.cost:
        if method == OURS:
            continue
        drawn = curves.differences(method)
        bounds_below = [lower_bound(point[1:]) for point in drawn]
        cells = [f"{point[0]:+.3f} [{low:+.3f}]" for point, low in zip(drawn, bounds_below, strict=True)]
        shown = sum(low > -MARGIN for low in bounds_below)
        rows.append(f"| {method} | {' | '.join(cells)} | {shown} of {len(POINTS)} |")
    return [*rows, ""]
