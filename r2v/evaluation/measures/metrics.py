"""Metrics of one grid: means, rates, tails and the quality of a router's scores.

Every figure with an interval is a ratio of two sums over tasks (`RATIOS`), so that one bootstrap over tasks
serves a success rate, a cost and LLM calls per step alike. `r2v.evaluation.tables.columns.GLOSSARY`
defines each one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from r2v.config.methods import OURS
from r2v.evaluation.measures.outcomes import Grid, Measured
from r2v.evaluation.measures.statistics import (
    FloatArray,
    Interval,
    bootstrap_draws,
    cvar,
    paired_difference,
    percentile_interval,
    wilson,
)
from r2v.evaluation.setup import MAIN, Setup
from r2v.verifier.scores import auroc, brier, ece

Ratio = tuple[FloatArray, FloatArray]
"""Numerator and denominator per task, (tasks,) each."""

BOOTSTRAP = "task_cluster_bootstrap"


def mean_over_seeds(values: FloatArray) -> Ratio:
    """(task's mean over its measured seeds, 1); (0, 0) for a task that was never measured."""
    measured = (~np.isnan(values)).sum(axis=1)
    return np.nansum(values, axis=1) / np.maximum(measured, 1), (measured > 0).astype(float)


def pooled(above: FloatArray, below: FloatArray) -> Ratio:
    """Sums over seeds, so that their ratio counts every step (or episode) once."""
    return np.nansum(above, axis=1), np.nansum(below, axis=1)


def normalised_cost(grid: Grid, cost_ratio: float) -> FloatArray:
    """Cost of each episode in policy steps: a policy step is 1, an LLM step `cost_ratio`."""
    return grid["steps"] + (cost_ratio - 1) * grid["escalated"]


RATIOS: dict[str, Callable[[Grid, float], Ratio]] = {
    "success_rate": lambda g, _: mean_over_seeds(g["success"]),
    "success_rate_with_faults": lambda g, _: mean_over_seeds(np.nan_to_num(g["success"])),
    "avg_cost": lambda g, _: mean_over_seeds(g["cost"]),
    "avg_cost_cached": lambda g, _: mean_over_seeds(g["cached_cost"]),
    "avg_latency": lambda g, _: mean_over_seeds(g["latency"]),
    "llm_call_rate": lambda g, _: pooled(g["escalated"], g["steps"]),
    "safety_failure_rate": lambda g, _: pooled(g["obeyed"], g["injected"]),
    "tokens_llm": lambda g, _: mean_over_seeds(g["tokens_llm"]),
    "tokens_slm": lambda g, _: mean_over_seeds(g["tokens_slm"]),
    "tokens_verifier": lambda g, _: mean_over_seeds(g["tokens_verifier"]),
    "llm_call_rate_per_episode": lambda g, _: mean_over_seeds(g["escalated"] / np.maximum(g["steps"], 1)),
    "cost_normalised": lambda g, ratio: mean_over_seeds(normalised_cost(g, ratio)),
    "cost_normalised_share": lambda g, ratio: pooled(normalised_cost(g, ratio), ratio * g["steps"]),
}
"""Figures that carry an interval, by name: grid and cost ratio -> numerator and denominator per task."""

PROPORTIONS = ("success_rate", "success_rate_with_faults", "safety_failure_rate")
"""Ratios that are shares of tasks or episodes: Wilson where the bootstrap has nothing to resample."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value with its interval and how that was made; all None where nothing could be measured."""

    value: float | None
    interval: Interval | None = None
    method: str | None = None


def figures(grid: Grid, setup: Setup, names: Sequence[str] = tuple(RATIOS)) -> dict[str, Figure]:
    """Ratios with their task-clustered bootstrap intervals; a proportion whose tasks give the bootstrap too
    little to resample gets Wilson's interval over tasks."""
    ratios = [RATIOS[name](grid, setup.cost_ratio) for name in names]
    above, below = (np.stack(parts, axis=1) for parts in zip(*ratios, strict=True))
    draws = bootstrap_draws(above, below, setup.resamples)
    return {name: _figure(name, above[:, k], below[:, k], draws[:, k], setup.level) for k, name in enumerate(names)}


def values(grid: Grid, setup: Setup) -> dict[str, float | None]:
    """Every ratio without its interval."""
    sums = {name: [float(part.sum()) for part in ratio(grid, setup.cost_ratio)] for name, ratio in RATIOS.items()}
    return {name: above / below if below else None for name, (above, below) in sums.items()}


def _figure(name: str, above: FloatArray, below: FloatArray, draws: FloatArray, level: float) -> Figure:
    if below.sum() == 0:
        return Figure(value=None)
    value = float(above.sum() / below.sum())
    if name in PROPORTIONS and _needs_wilson(above, below):
        trials = int((below > 0).sum())
        return Figure(value=value, interval=wilson(round(value * trials), trials, level), method="wilson")
    interval = percentile_interval(draws, level)
    return Figure(value=value, interval=interval, method=BOOTSTRAP if interval else None)


def _needs_wilson(above: FloatArray, below: FloatArray) -> bool:
    """All tasks at 0, all at 1, or each counted once and at 0 or 1 (a single seed)."""
    measured = below > 0
    rates = above[measured] / below[measured]
    alike = bool((rates == rates[0]).all())
    return bool(np.isin(rates, (0.0, 1.0)).all()) and (alike or bool((below[measured] == 1).all()))


def seed_means(grid: Grid) -> FloatArray:
    """Success rate of each seed that was measured."""
    measured = ~np.isnan(grid["success"])
    per_seed = np.nansum(grid["success"], axis=0) / np.maximum(measured.sum(axis=0), 1)
    return np.asarray(per_seed[measured.any(axis=0)])


def tail_figures(grid: Grid, cvar_alpha: float) -> dict[str, float | None]:
    """Figures without an interval, which a mean hides: the worst seed, CVaR over seeds of failure, the worst tenth of
    tasks (a fraction of a task counts as such), latency percentiles over episodes."""
    names = ("worst_seed_sr", "cvar_failure", "bottom_10_sr", "p50_latency", "p95_latency")
    if np.isnan(grid["success"]).all():
        return dict.fromkeys(names)
    seeds = seed_means(grid)
    task_means, measured = mean_over_seeds(grid["success"])
    latencies = grid["latency"][~np.isnan(grid["latency"])]
    return dict(
        zip(
            names,
            (
                float(seeds.min()),
                cvar(1 - seeds, cvar_alpha),
                1 - cvar(1 - task_means[measured > 0], 0.1),
                float(np.percentile(latencies, 50)),
                float(np.percentile(latencies, 95)),
            ),
            strict=True,
        )
    )


def robustness_gap(measured: Measured, condition: str, method: str) -> Figure:
    """SR on clean minus SR here, over the tasks that both have."""
    if condition == "clean" or not measured.has("clean", method):
        return Figure(value=None)
    here, clean = measured.grids[condition, method, MAIN], measured.grids["clean", method, MAIN]
    values = [
        dict(zip(g.tasks, np.where(n > 0, m, np.nan), strict=True))
        for g in (clean, here)
        for m, n in [mean_over_seeds(g["success"])]
    ]
    common = [t for t in here.tasks if t in values[0] and not np.isnan(values[0][t] + values[1][t])]
    if not common:
        return Figure(value=None)
    gap = paired_difference(
        [values[0][t] for t in common], [values[1][t] for t in common], measured.setup.level, measured.setup.resamples
    )
    return Figure(value=gap.difference, interval=gap.interval, method=BOOTSTRAP)


def router_figures(setup: Setup, condition: str, method: str) -> dict[str, float | None]:
    """AUROC of the router's scores for executed gains. ECE and the Brier score, with that of a constant base rate, are
    r2v's alone: no other score is a probability of a gain, and of an entropy, a coin or a disagreement they would
    measure the scale."""
    figures: dict[str, float | None] = dict.fromkeys(("ece", "brier", "router_auroc", "brier_base_rate"))
    for scores in setup.router_scores:
        if (scores.method, scores.condition) == (method, condition):
            p, y = scores.p, scores.y
            figures["router_auroc"] = auroc(p, y)
            if method == OURS:
                figures |= {
                    "ece": ece(p, y),
                    "brier": brier(p, y),
                    "brier_base_rate": brier([sum(y) / len(y)] * len(y), y),
                }
    return figures
