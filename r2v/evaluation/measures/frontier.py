"""The cost-success frontier: how much of the gap between small model and LLM a router recovers at which cost.

x = (C - C_slm) / (C_llm - C_slm), the realised cost fraction; C is USD as billed: candidates, samples and verifier
priced in, and the prompt cache of the LLM's endpoint.
y = PGR = (r - r_slm) / (r_llm - r_slm). A method's curve joins its operating points to (0, 0) and (1, 1);
APGR is the area under it, CPT(t) the least x at which it reaches t. A random router is usually below .5 on
multi-step tasks, so compare with its own curve, not with the diagonal. APGR and CPT are
RouteLLM's (arXiv 2406.18665).

There is no APGR where the small policy solves nothing (its gap to the LLM is the LLM's success, and asking for whole
tasks recovers it at any rate), nor of a method that mixes both models at none of its operating points: its points lie
on the two ends, and the .5 beneath their diagonal would measure no router.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from r2v.config.methods import STRONG, WEAK
from r2v.evaluation.measures.metrics import BOOTSTRAP, Figure, mean_over_seeds
from r2v.evaluation.measures.outcomes import Grid, Measured
from r2v.evaluation.measures.statistics import FloatArray, bootstrap_draws, percentile_interval, ratio_draws
from r2v.evaluation.setup import MAIN

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
    """A method's success against realised cost, estimate first, then bootstrap draws. None where the method was not
    played between both ends or an area would measure nothing (see above)."""
    points = measured.setup.frontier_points(condition, method)
    if not points or not measured.has(condition, WEAK, STRONG):
        return None
    weak = _draws(measured.grids[condition, WEAK, MAIN], "success", measured.setup.resamples)
    if not weak[0] > 0 or not any(_mixes(measured.grids[condition, method, point]) for point in points):
        return None
    cost, success = between_ends(measured, condition, method)
    low, high = ((cost[:, end], success[:, end]) for end in (0, -1))
    return Curve.through(cost[:, 1:-1], success[:, 1:-1], low, high)


def _mixes(grid: Grid) -> bool:
    """True if the LLM acted in some of the steps and not in all."""
    return bool(0 < np.nansum(grid["escalated"]) < np.nansum(grid["steps"]))


def curve_tasks(measured: Measured, condition: str, method: str) -> tuple[str, ...]:
    """Tasks of every operating point of a method; the main one may have more."""
    points = measured.setup.frontier_points(condition, method) or [MAIN]
    return measured.grids[condition, method, points[-1]].tasks


def between_ends(measured: Measured, condition: str, method: str) -> End:
    """Cost and success of the small policy, of each operating point of a method, and of the LLM, on the method's
    `curve_tasks`: (draws, points + 2) each, estimate first."""
    points = measured.setup.frontier_points(condition, method) or [MAIN]
    keys = [(WEAK, MAIN), *((method, point) for point in points), (STRONG, MAIN)]
    tasks = curve_tasks(measured, condition, method)
    drawn = [_end(measured, condition, *key, tasks) for key in keys]
    cost, success = (np.stack(axis, axis=1) for axis in zip(*drawn, strict=True))
    return cost, success


def success_at_cost(measured: Measured, condition: str, method: str, other: str) -> End | None:
    """Success of a method at its main point, and of another for the same dollars as billed, (draws,) each, estimate
    first. The other's is interpolated between its two points next to that cost, the ends among them: a coin per
    episode between the two plays that line, so it is the success of a policy, and at most a little below that of a
    threshold in between. None without both ends."""
    if not measured.has(condition, WEAK, STRONG, method, other):
        return None
    usd, own = _end(measured, condition, method, tasks=curve_tasks(measured, condition, other))
    return own, interpolated(*between_ends(measured, condition, other), usd)


def interpolated(x: FloatArray, y: FloatArray, at: FloatArray) -> FloatArray:
    """The ordinate at `at`, (draws,), of each draw's polyline through its points (x, y), (draws, points), by x; beyond
    them that of the nearest. Of points with one x the highest counts."""
    order = np.lexsort((y, x), axis=1)
    x, y = np.take_along_axis(x, order, 1), np.take_along_axis(y, order, 1)
    right = (x <= at[:, None]).sum(axis=1).clip(1, x.shape[1] - 1)
    rows = np.arange(len(x))
    gap = x[rows, right] - x[rows, right - 1]
    share = np.where(gap > 0, (at - x[rows, right - 1]) / np.where(gap > 0, gap, 1), 1.0).clip(0, 1)
    return np.asarray((1 - share) * y[rows, right - 1] + share * y[rows, right])


def area(measured: Measured, condition: str, method: str) -> tuple[Figure, float | None, float | None]:
    """APGR, CPT(50 %) and CPT(80 %) of a method; None where it has no curve or the LLM gains nothing."""
    curve = curve_of(measured, condition, method)
    figure = Figure(value=None) if curve is None else _estimated(curve.apgr(), measured.setup.level)
    if curve is None or figure.value is None:
        return figure, None, None
    return figure, curve.cpt(0.5), curve.cpt(0.8)
