"""Views of experiments: lists and current progress as text."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from r2v.console import duration, text_table
from r2v.experiments.metrics import SERIES, headline
from r2v.experiments.records import ExperimentRecord, RunRecord, Status, experiments, now, read_record
from r2v.experiments.specification.expansion import label_of
from r2v.storage.lease import holder
from r2v.storage.record import EVENTS

LEASE = ".lease"
"""Lease held by the process that runs an experiment."""


def list_lines() -> list[str]:
    """Return a table of the project's experiments, one line each."""
    rows = [("experiment", "mode", "runs", "")]
    for folder in experiments():
        record = read_record(folder)
        rows.append((folder.name, record.mode, summary(record), _worked_on(folder)))
    return text_table(rows).splitlines() if len(rows) > 1 else ["no experiment yet; r2v experiments run --exp SPEC"]


def status_lines(folder: Path) -> list[str]:
    """Return a table of an experiment's runs: status, time, values, progress or figures."""
    record = read_record(folder)
    metric = f"{record.metric or 'metrics'}"
    rows = [("run", "status", "took", "values", metric)]
    for run in record.runs:
        values = label_of(run.values, run.seed) or run.base
        rows.append((run.run, _status(run), _took(run), values, _far(run, record.metric)))
    return [f"{folder}: {summary(record)}{_worked_on(folder)}", *text_table(rows).splitlines()]


def summary(record: ExperimentRecord) -> str:
    """Return the number of runs by status as text."""
    statuses: tuple[Status, ...] = ("completed", "running", "pending", "failed")
    counts = ", ".join(f"{count} {status}" for status in statuses if (count := record.count(status)))
    return f"{counts} of {len(record.runs)}"


def _worked_on(folder: Path) -> str:
    owner = holder(folder / LEASE)
    return "" if owner is None else f"; worked on by {owner}"


def _status(run: RunRecord) -> str:
    if run.reused_from:
        return f"{run.status} in {run.reused_from}"
    return run.status if run.return_code in (0, None) else f"{run.status} (return code {run.return_code})"


def _took(run: RunRecord) -> str:
    if run.started_at is None:
        return ""
    end = run.completed_at or now()
    return duration((datetime.fromisoformat(end) - datetime.fromisoformat(run.started_at)).total_seconds())


def _far(run: RunRecord, metric: str | None) -> str:
    """Return the figures of a completed run, or the latest progress or figures of a running one."""
    folder = Path(run.run_dir)
    if run.status == "completed":
        return headline(folder, metric)
    if run.status != "running":
        return ""
    with suppress(OSError, ValueError, IndexError, KeyError):  # no event yet, or one being written
        event = json.loads((folder / EVENTS).read_text().splitlines()[-1])
        return f"{event['what']} {event['done']} of {event['total']}"
    return headline(folder, metric) if (folder / SERIES).exists() else ""
