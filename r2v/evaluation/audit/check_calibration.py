"""Thresholds: calibration.json, held to the budgets of the configuration, to the router's own point and to what
artifact.json repeats of it.

The calibration episodes themselves are not kept, so of the figures that were realised on them only the ranges are
checked. No table uses them; the thresholds are what every routed decision is checked against.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r2v.config.methods import OURS
from r2v.data.schema import SchemaError, from_dict
from r2v.errors import InputError
from r2v.evaluation.audit.folder import read_json
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import MAIN, CalibrationRecord
from r2v.router.thresholds import ALTERNATIVES, FEWEST_TASKS, TOLERANCES, ScoreChoice

CALIBRATION = "calibration.json"
MOST_USD = 1e6
"""Above the mean cost of any episode."""
_OWN = f"{OURS}@{MAIN}"
"""The point that comes with the router, realised when that was trained."""

Thresholds = dict[tuple[str, str], float]
"""(method, operating point) -> threshold."""
Scores = dict[tuple[str, str], str]
"""(method, operating point) -> the method whose score decides."""


def read_calibration(results: Path) -> dict[str, CalibrationRecord]:
    """The records by <method>@<point>. Raises InputError where the file is missing or holds anything else."""
    path = results / CALIBRATION
    records: Any = read_json(path)
    if not isinstance(records, dict):
        raise InputError(f"{path}: holds no object")
    try:
        return {str(name): from_dict(CalibrationRecord, value) for name, value in records.items()}
    except SchemaError as error:
        raise InputError(f"{path}: {error}") from None


def thresholds_of(records: Mapping[str, CalibrationRecord]) -> Thresholds:
    """The thresholds alone."""
    parts = {name: name.partition("@") for name in records}
    return {(parts[name][0], parts[name][2]): record.tau for name, record in records.items()}


def scores_of(records: Mapping[str, CalibrationRecord]) -> Scores:
    """The scores alone."""
    parts = {name: name.partition("@") for name in records}
    return {(parts[name][0], parts[name][2]): record.score or parts[name][0] for name, record in records.items()}


def calibration_problems(records: Mapping[str, CalibrationRecord], settings: EvaluateSettings) -> Iterator[str]:
    """What cannot be in a calibration of these settings."""
    budgets = settings.evaluation.operating_points
    expected = {f"{method}@{point}" for method in settings.routed for point in (MAIN, *budgets)}
    if odd := sorted(records.keys() ^ expected):
        yield f"{odd[0]} is {'not of this evaluation' if odd[0] in records else 'missing'}"
    for name, record in records.items():
        method, _, point = name.partition("@")
        own = records.get(f"{OURS}@{point}")
        rates = (record.tau, record.llm_call_rate, record.success, *((record.target,) if record.by != "cost" else ()))
        if not all(0 <= rate <= 1 for rate in rates) or not all(
            0 <= usd <= MOST_USD for usd in (record.cost, record.target)
        ):
            yield f"{name} holds {asdict(record)}: out of range"
        if record.by != (by := "llm_call_rate" if own is None or method == OURS else "cost"):
            yield f"{name}: its target is of {record.by}, of these methods it is of {by}"
        elif record.by == "cost" and own is not None and record.target != own.cost:
            yield f"{name}: target is {record.target} USD, {OURS} cost {own.cost}"
        if record.by != "cost" and point in budgets and record.target != budgets[point]:
            yield f"{name}: target is {record.target}, the budget is {budgets[point]}"
        placed, spent = record.tau, record.spent
        if record.choice is not None and record.by == "llm_call_rate":  # its budget is one of r2v's own score
            placed, spent = record.choice.own.tau, record.choice.own.outcome.llm_call_rate
        most = record.target + TOLERANCES[record.by](record.target)
        if name != _OWN and spent > most and placed < 1:
            yield f"{name}: {record.by} {spent} is above its target {record.target}"
        yield from (f"{name}: {problem}" for problem in _choice_problems(method, record, settings))


def _choice_problems(method: str, record: CalibrationRecord, settings: EvaluateSettings) -> Iterator[str]:
    """Yield each point of a choice of a score that contradicts its own figures or the settings."""
    choice = record.choice
    if choice is None:
        return
    if method != OURS or not settings.router.choose_score:
        yield "a choice of scores is recorded, and none is made here"
        return
    if odd := [name for name in choice.compared if name not in ALTERNATIVES]:
        yield f"{odd[0]} is no score to choose"
        return
    if choice.num_tasks < FEWEST_TASKS:
        yield f"a score was chosen on {choice.num_tasks} calibration tasks, with fewer than {FEWEST_TASKS} none is"
    for name, one in choice.compared.items():
        if not (-1 <= one.difference <= 1 and one.standard_error >= 0):
            yield f"{name} is ahead by {one.difference} (standard error {one.standard_error}), which no shares are"
        if one.outcome.cost > choice.own.outcome.cost + TOLERANCES["cost"](choice.own.outcome.cost) and one.tau < 1:
            yield f"{name} was compared at {one.outcome.cost} USD, {OURS} cost {choice.own.outcome.cost}"
    implied = ScoreChoice.of(choice.own, choice.compared, choice.num_tasks)
    if choice.score != implied.score:
        yield f"{choice.score} acts, by the figures of the choice it is {implied.score}"
    elif (record.tau, record.outcome) != (choice.acting.tau, choice.acting.outcome):
        yield f"its threshold and outcome are not those of {choice.score}"


def router_problems(records: Mapping[str, CalibrationRecord], router: Mapping[str, Any]) -> Iterator[str]:
    """What contradicts the point that the router was trained to: what it realised is the target of every main point,
    and r2v's main point is that point."""
    for name, record in records.items():
        if name.partition("@")[2] == MAIN and record.target != router.get(record.by):
            yield f"{name}: target is {record.target}, the router realised {router.get(record.by)}"
    if (own := records.get(_OWN)) is not None:
        for key, value in {"tau": own.tau, **asdict(own.outcome)}.items():
            if router.get(key) != value:
                yield f"{_OWN}: {key} is {value}, the router of attempt.meta.json says {router.get(key)}"
