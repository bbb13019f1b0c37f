"""Thresholds: calibration.json, held to the budgets of the configuration and to what artifact.json repeats of it.

The calibration episodes themselves are not kept, so the figures that were realised on them are only checked for being
possible. No table uses them; the thresholds are what every routed decision is checked against.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from r2v.data.schema import SchemaError, from_dict
from r2v.errors import InputError
from r2v.evaluation.audit.folder import read_json
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import MAIN

CALIBRATION = "calibration.json"
_TOLERANCE = 0.005
"""Of `r2v.router.thresholds.match_rate`."""

Thresholds = dict[tuple[str, str], float]
"""(method, operating point) -> threshold."""


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """One threshold and what was realised with it on calibration tasks."""

    tau: float
    target: float
    llm_call_rate: float
    success: float
    cost: float


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


def calibration_problems(records: Mapping[str, CalibrationRecord], settings: EvaluateSettings) -> Iterator[str]:
    """What cannot be in a calibration of these settings."""
    budgets = dict(zip(settings.points, settings.evaluation.budgets, strict=True))
    expected = {f"{method}@{point}" for method in settings.routed for point in (MAIN, *budgets)}
    if odd := sorted(records.keys() ^ expected):
        yield f"{odd[0]} is {'not of this evaluation' if odd[0] in records else 'missing'}"
    mains = {record.target for name, record in records.items() if name.endswith(f"@{MAIN}")}
    if len(mains) > 1:
        yield f"the targets of the main table differ: {sorted(mains)}"
    for name, record in records.items():
        point = name.partition("@")[2]
        rates = (record.tau, record.target, record.llm_call_rate, record.success)
        if not all(0 <= rate <= 1 for rate in rates) or record.cost < 0:
            yield f"{name} holds {asdict(record)}: out of range"
        if point in budgets and record.target != budgets[point]:
            yield f"{name}: target is {record.target}, the budget is {budgets[point]}"
        if name != f"r2v@{MAIN}" and record.llm_call_rate > record.target + _TOLERANCE and record.tau < 1:
            yield f"{name}: llm_call_rate {record.llm_call_rate} is above its target {record.target}"
        if name == f"r2v@{MAIN}" and record.llm_call_rate != record.target:
            yield f"{name}: its own rate {record.llm_call_rate} is the target of all, which is {record.target}"
