"""The cost-success frontier: how much of the gap between small model and LLM a router recovers at which cost.

x = (C - C_slm) / (C_llm - C_slm), the realised cost fraction; C is what would be billed: candidates, samples and
verifier priced in, and the prompt cache of the LLM's endpoint.
y = PGR = (r - r_slm) / (r_llm - r_slm). A method's curve joins its operating points to (0, 0) and (1, 1);
APGR is the area under it, CPT(t) the least x at which it reaches t. A random router is usually below .5 on
multi-step tasks, so compare with its own curve, not with the diagonal. APGR and CPT are
RouteLLM's (arXiv 2406.18665).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from r2v.config.methods import STRONG, WEAK
from r2v.evaluation.metrics import BOOTSTRAP, Figure, mean_over_seeds
from r2v.evaluation.outcomes import Grid, Measured
from r2v.evaluation.setup import MAIN
from r2v.evaluation.statistics import FloatArray, bootstrap_draws, percentile_interval, ratio_draws

LISTED, BILLED = "cost", "cached_cost"
"""Columns of a grid: USD at list prices, and with the prompt cache of the LLM's endpoint."""

End = tuple[FloatArray, FloatArray]
"""Cost and success rate of one method or point, (draws,) each."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A polyline from (0, 0) to (1, 1) for each of D bootstrap draws: `x`, `y` of shape (D, points)."""

    x: FloatArray
    y: FloatArray

    @classmethod
    def through(cls, cost: FloatArray, success: FloatArray, slm: End, llm: End) -> Curve:
        """From costs and success rates of the operating points, (D, P), and the (cost, success) of both ends,
        (D,) each. Draws in which the LLM is not both dearer and better than the small model are NaN."""
        x = _fraction(cost, slm[0], llm[0]).clip(0, 1)
        y = _fraction(success, slm[1], llm[1])
        ends = np.zeros((len(x), 1)), np.ones((len(x), 1))
        x, y = (np.concatenate([ends[0], values, ends[1]], axis=1) for values in (x, y))
        order = np.lexsort((y, x), axis=1)
        return cls(x=np.take_along_axis(x, order, 1), y=np.take_along_axis(y, order, 1))

    def apgr(self) -> FloatArray:
        """Area under the curve of each draw, (D,)."""
        return np.asarray(np.trapezoid(self.y, self.x, axis=1))

    def cpt(self, target: float) -> float:
        """The first draw's least cost fraction with PGR >= target, interpolated along the curve."""
        x, y = self.x[0], self.y[0]
        first = int(np.argmax(y >= target))
        if first == 0:
            return float(x[0])
        return float(np.interp(target, y[first - 1 : first + 1], x[first - 1 : first + 1]))


def _fraction(values: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    gap = np.where(high > low, high - low, np.nan)
    return (values - low[:, None]) / gap[:, None]


@lru_cache(maxsize=256)
def _draws(grid: Grid, column: str, resamples: int) -> FloatArray:
    """A mean over tasks: its estimate, then its bootstrap draws, (1 + resamples,)."""
    above, below = mean_over_seeds(grid[column])
    estimate = ratio_draws(above, below, np.ones((1, len(grid.tasks))))
    return np.concatenate([estimate, bootstrap_draws(above, below, resamples)])


@lru_cache(maxsize=256)
def _limited(grid: Grid, tasks: tuple[str, ...]) -> Grid:
    return grid.of_tasks(tasks)


def _end(
    measured: Measured, condition: str, method: str, point: str = MAIN, tasks: tuple[str, ...] | None = None
) -> End:
    """Of a method at a point; on these tasks, where they are given."""
    grid = measured.grids[condition, method, point]
    grid = grid if tasks is None else _limited(grid, tasks)
    return _draws(grid, BILLED, measured.setup.resamples), _draws(grid, "success", measured.setup.resamples)


def _estimated(draws: FloatArray, level: float) -> Figure:
    if np.isnan(draws[0]):
        return Figure(value=None)
    interval = percentile_interval(draws[1:], level)
    return Figure(value=float(draws[0]), interval=interval, method=BOOTSTRAP if interval else None)


def cost_fraction(measured: Measured, condition: str, grid: Grid, column: str = BILLED) -> Figure:
    """Realised cost of a grid as a fraction of the way from slm_only's to llm_only's on its tasks; by its column of
    this name."""
    if not measured.has(condition, WEAK, STRONG):
        return Figure(value=None)
    resamples = measured.setup.resamples
    ends = (_limited(measured.grids[condition, end, MAIN], grid.tasks) for end in (WEAK, STRONG))
    low, high = (_draws(end, column, resamples) for end in ends)
    cost = _draws(grid, column, resamples)
    return _estimated((cost - low) / np.where(high > low, high - low, np.nan), measured.setup.level)


def curve_of(measured: Measured, condition: str, method: str) -> Curve | None:
    """A method's success against realised cost, estimate first, then bootstrap draws. None without operating
    points or without both ends."""
    points = measured.setup.frontier_points(condition, method)
    if not points or not measured.has(condition, WEAK, STRONG):
        return None
    tasks = measured.grids[condition, method, points[-1]].tasks  # of every point; the main one may have more
    played = [_end(measured, condition, method, point, tasks) for point in points]
    cost, success = (np.stack(axis, axis=1) for axis in zip(*played, strict=True))
    low, high = (_end(measured, condition, end, tasks=tasks) for end in (WEAK, STRONG))
    return Curve.through(cost, success, low, high)


def area(measured: Measured, condition: str, method: str) -> tuple[Figure, float | None, float | None]:
    """APGR, CPT(50 %) and CPT(80 %) of a method; None where it has no frontier or the LLM gains nothing."""
    curve = curve_of(measured, condition, method)
    figure = Figure(value=None) if curve is None else _estimated(curve.apgr(), measured.setup.level)
    if curve is None or figure.value is None:
        return figure, None, None
    return figure, curve.cpt(0.5), curve.cpt(0.8)
