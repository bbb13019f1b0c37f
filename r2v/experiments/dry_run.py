"""Dry run of an experiment: its points and their estimated cost, without running anything.

For a stage of the pipeline, work shared by several points is counted once, and finished work not at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from r2v.console import text_table
from r2v.experiments.schedule.opening import completed_elsewhere
from r2v.experiments.specification.asha_rule import AshaRule, levels_of
from r2v.experiments.specification.expansion import Point, shown_value
from r2v.experiments.specification.spec import ExperimentSpec
from r2v.pipeline.plan.benchmark_facts import UNCOUNTED_FIGURE


@dataclass(frozen=True, kw_only=True)
class PointCost:
    """Jobs of a point that no earlier point makes, and their cost as estimated by the plan."""

    jobs: tuple[str, ...]
    gpu_hours: float
    usd: float | None
    """List price; None if unknown."""
    hours: float
    """Wall time, one job after another; nan if unknown."""
    to_count: str = ""
    """For an uncounted benchmark: why the figures are unknown, and the command that counts its tasks."""


def dry_run_lines(spec: ExperimentSpec, points: Sequence[Point]) -> list[str]:
    """Return the lines of a dry run: the number of points, a table of them, and the total cost."""
    keys = list(dict.fromkeys(key for point in points for key in point.values))
    done = completed_elsewhere(Path()) if spec.command else {}
    costs = _costs(spec, points)
    head = ["run", *keys, *(["seed"] if spec.seeds else []), *([] if keys else ["config"])]
    rows = [[*head, "to do", *(["GPU-hours", "dollars"] if costs else [])]]
    for number, point in enumerate(points):
        cells = [point.run, *(shown_value(point.values.get(key, "")) for key in keys)]
        cells += [*([str(point.seed)] if spec.seeds else []), *([] if keys else [str(point.base)])]
        if costs:
            cost = costs[number]
            figures = (_figure(value, not cost.to_count) for value in (cost.gpu_hours, cost.usd))
            cells += [" ".join(cost.jobs) or "nothing: made already", *figures]
        else:
            cells.append("nothing: completed already" if point.identity in done else spec.runs)
        rows.append(cells)
    return [
        f"{spec.name}: {len(points)} points",
        *text_table(rows).splitlines(),
        *([_total(costs)] if costs else []),
        *dict.fromkeys(cost.to_count for cost in costs if cost.to_count),
        *([_rungs(spec.asha, points)] if spec.asha is not None else []),
    ]


def _rungs(rule: AshaRule, points: Sequence[Point]) -> str:
    levels = " -> ".join(map(shown_value, levels_of(rule, [point.text for point in points])))
    return f"asha: {rule.resource} {levels}; the best 1/{rule.eta} of each rung continue, with ties of the last"


def _total(costs: Sequence[PointCost]) -> str:
    prices = [cost.usd for cost in costs]
    usd = None if None in prices else sum(price for price in prices if price is not None)
    counted = not any(cost.to_count for cost in costs)
    return (
        f"all: {sum(len(cost.jobs) for cost in costs)} stages to make, "
        f"{_figure(sum(cost.gpu_hours for cost in costs), counted)} GPU-hours, {_figure(usd, counted)} dollars at list "
        f"prices, {_figure(sum(cost.hours for cost in costs), counted)} hours one after another"
    )


def _figure(value: float | None, counted: bool) -> str:
    if value is not None and not math.isnan(value):
        return f"{value:,.2f}"
    return "unknown" if counted else UNCOUNTED_FIGURE


def _costs(spec: ExperimentSpec, points: Sequence[Point]) -> list[PointCost]:
    """Return the cost of each point beyond the points before it; nothing for a command or a simulation."""
    if spec.stage is None:
        return []
    counted: set[str] = set()
    return [_cost(spec.stage, point, counted) for point in points]


def _cost(stage: str, point: Point, counted: set[str]) -> PointCost:
    from r2v.config.yaml_text import read
    from r2v.experiments.point import config_of, jobs_of
    from r2v.pipeline.graph import selection, upstream
    from r2v.pipeline.plan.benchmark_facts import facts_here, uncounted_line
    from r2v.pipeline.plan.jobs_to_do import plan
    from r2v.slurm.estimate import planned_by_headers

    config = config_of(read(point.text, point.run).mapping())
    jobs = upstream(jobs_of(stage, config), selection(config)[0])
    steps = [step for step in plan(config) if step.job.name in jobs]
    new = [step for step in steps if step.state != "up to date" and step.recipe not in counted]
    counted.update(step.recipe for step in new)
    if not new:
        return PointCost(jobs=(), gpu_hours=0.0, usd=0.0, hours=0.0)
    size = facts_here(config)
    works = planned_by_headers(config, [step.job for step in new], size)
    prices = [work.usd for work in works]
    return PointCost(
        jobs=tuple(step.job.name for step in new),
        gpu_hours=sum(work.gpu_hours for work in works),
        usd=None if None in prices else sum(price for price in prices if price is not None),
        hours=sum(work.wall for work in works) / 3600,
        to_count=uncounted_line(config, size) if size.to_count else "",
    )
