"""ASHA: early stopping by asynchronous successive halving, from files alone (Li et al., arXiv 1810.05934).

Every point is run at the lowest level of the resource. As soon as a point is among the best 1/eta of the finished runs
of its rung, it is run again on the next rung; all others stop there. Points that tie with the last of the best are
promoted too: with few tasks ties are common, and a later name is no reason to stop. A stage of the pipeline continues
from its lower level, whose episodes and paid replies are reused.

Each decision is a line of `decisions.jsonl` with all its inputs, so that `replayed` can check it. A decision depends
only on the finished runs and their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.experiments.metrics import metric_of
from r2v.experiments.records import ExperimentRecord, RunRecord
from r2v.experiments.specification.asha_rule import AshaRule, levels_of
from r2v.experiments.specification.expansion import Point, with_value
from r2v.experiments.specification.spec import ExperimentSpec, Goal
from r2v.storage.files import write_lines

DECISIONS = "decisions.jsonl"


@dataclass(frozen=True, kw_only=True)
class AshaDecision:
    """Promotion of a point to the next rung. `among`: point -> figure on its rung at that moment; `promoted`: the
    points of that rung promoted before."""

    point: str
    rung: int
    among: dict[str, float]
    promoted: tuple[str, ...]


def promotable(among: dict[str, float], promoted: Iterable[str], eta: int, goal: Goal) -> str | None:
    """Return the best point not yet promoted among the best 1/eta of a rung and ties of their last, or None."""
    loss = {point: -figure if goal == "max" else figure for point, figure in among.items()}
    ranked = sorted(loss, key=lambda point: (loss[point], point))
    best = len(ranked) // eta
    if best == 0:
        return None
    bar, gone = loss[ranked[best - 1]], set(promoted)
    return next((point for point in ranked if loss[point] <= bar and point not in gone), None)


def replayed(folder: Path, eta: int, goal: Goal) -> tuple[int, list[AshaDecision]]:
    """Recompute every decision of an experiment; return their number and those that differ. Raise InputError if the
    file is missing or damaged."""
    decisions = read_decisions(folder)
    wrong = [each for each in decisions if promotable(each.among, each.promoted, eta, goal) != each.point]
    return len(decisions), wrong


def read_decisions(folder: Path) -> list[AshaDecision]:
    """Return the decisions of an experiment in order. Raise InputError if the file is missing or damaged."""
    path = folder / DECISIONS
    try:
        rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        return [AshaDecision(**{**row, "promoted": tuple(row["promoted"])}) for row in rows]
    except FileNotFoundError:
        raise InputError(f"{path}: not there; only an experiment with asha takes decisions") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: damaged ({error})") from None


class AshaSchedule:
    """Schedule of runs under early stopping."""

    def __init__(self, folder: Path, spec: ExperimentSpec, rule: AshaRule, points: Sequence[Point]) -> None:
        self._folder, self._spec, self._rule = folder, spec, rule
        self._points = {point.identity: point for point in points}
        self._levels = levels_of(rule, [point.text for point in points])

    def next(self, record: ExperimentRecord, untried: Sequence[RunRecord]) -> tuple[RunRecord, str] | None:
        """Return an unfinished run of a higher rung, else a promotion, highest rung first, else a new point."""
        open_runs = [run for run in untried if run.status in ("pending", "failed")]
        for run in sorted(open_runs, key=lambda run: -(run.rung or 0)):
            if run.rung:
                return run, self._at(self._first(record, run), run.rung, run.run).text
        for rung in reversed(range(len(self._levels) - 1)):
            promotion = self._promotion(record, rung)
            if promotion is not None:
                return promotion
        for run in sorted(open_runs, key=lambda run: run.identity):  # by hash: the grid's order may follow the metric
            if run.identity in self._points:
                low = self._at(self._points[run.identity], 0, run.run)
                return run, low.text
        return None

    def _at(self, point: Point, rung: int, run: str) -> Point:
        return with_value(self._spec, point, self._rule.resource, self._levels[rung], run)

    def _first(self, record: ExperimentRecord, run: RunRecord) -> Point:
        """Return the point of a run on a higher rung."""
        return self._points[record.run(point_of(run)).identity]

    def _promotion(self, record: ExperimentRecord, rung: int) -> tuple[RunRecord, str] | None:
        rows = [run for run in record.runs if run.rung == rung]
        metric = str(self._spec.metric)
        among = {point_of(run): metric_of(Path(run.run_dir), metric) for run in rows if run.status == "completed"}
        promoted = tuple(point_of(run) for run in record.runs if run.rung == rung + 1)
        point = promotable(among, promoted, self._rule.eta, self._spec.goal)
        if point is None:
            return None
        self._write(AshaDecision(point=point, rung=rung, among=among, promoted=promoted))
        run = record.run(point)
        name = f"{point}_rung{rung + 1}"
        higher = self._at(self._points[run.identity], rung + 1, name)
        folder = self._folder
        return (
            replace(
                run,
                run=name,
                status="pending",
                identity=higher.identity,
                rung=rung + 1,
                config_path=str(folder / "configs" / f"{name}.yaml"),
                run_dir=str(folder / "runs" / name),
                started_at=None,
                completed_at=None,
                return_code=None,
                reused_from=None,
                peak_bytes=None,
                cpu_seconds=None,
            ),
            higher.text,
        )

    def _write(self, decision: AshaDecision) -> None:
        """Append a decision unless a killed process had already written it."""
        path = self._folder / DECISIONS
        lines = path.read_text().splitlines() if path.exists() else []
        line = json.dumps(asdict(decision), ensure_ascii=False, separators=(",", ":"))
        if line not in lines:
            write_lines(path, [*lines, line])


def point_of(run: RunRecord) -> str:
    """Return the point of a run: its name without the rung."""
    return run.run.partition("_rung")[0]
