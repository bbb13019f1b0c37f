"""Local runs in `r2v status`, `logs` and `cost`, listed with the chains of Slurm.

lines(root, run)          # mrp (this machine): running, stage 3 of 10
cost_lines(run)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from r2v.console import duration, text_table
from r2v.pipeline.local_run import LocalRun, LocalStage, is_running, log_of
from r2v.slurm.views.humanize import clock, paid
from r2v.slurm.views.logs import growing

DONE, FAILED, ACTIVE = 0, 1, 10


def state(root: Path, run: LocalRun) -> tuple[str, int]:
    """Return the state of a run in a word, and its exit code in `r2v status`."""
    if is_running(root, run):
        return "running", ACTIVE
    if run.ended is None:
        return "killed", FAILED
    if run.error or any(stage.state == "failed" for stage in run.stages):
        return "failed", FAILED
    return "done", DONE


def lines(root: Path, run: LocalRun) -> list[str]:
    """Return the lines of `r2v status` about a run."""
    word, code = state(root, run)
    finished = sum(stage.state in ("done", "up to date") for stage in run.stages)
    begun = clock(datetime.fromtimestamp(run.begun).isoformat())
    head = f"{run.name} (here, begun {begun}): {word}, {finished} of {len(run.stages)} stages made"
    rows = [
        (
            stage.job,
            word if stage.state == "running" else stage.state,
            duration(stage.seconds),
            f"${stage.usd:,.2f}",
            _doing(stage),
        )
        for stage in run.stages
    ]
    table = text_table([("stage", "state", "time", "paid", ""), *rows]).splitlines()
    table += [f"! {run.error}"] if run.error and not any(stage.error for stage in run.stages) else []
    hint = [f"  the same command goes on; r2v logs {run.name} STAGE"] if code == FAILED else []
    return [head, *(f"  {line}" for line in table), *hint]


def as_json(root: Path, run: LocalRun) -> dict[str, Any]:
    """Return a run as JSON: its fields, its state, and for each stage the seconds elapsed and left."""
    stages = [asdict(stage) | {"seconds": stage.seconds, "seconds_left": stage.seconds_left} for stage in run.stages]
    word, code = state(root, run)
    return asdict(run) | {"stages": stages, "state": word, "exit_code": code}


def cost_lines(run: LocalRun) -> list[str]:
    """Return the lines of `r2v cost` about a run."""
    rows = [
        (stage.job, duration(stage.seconds), f"{stage.cpu_seconds:,.1f}", _peak(stage), f"${stage.usd:,.4f}")
        for stage in run.stages
    ]
    cpu, usd = sum(stage.cpu_seconds for stage in run.stages), sum(stage.usd for stage in run.stages)
    total = ("in all", "", f"{cpu:,.1f}", "", f"${usd:,.4f}")
    head = f"{run.name} (here): {cpu / 3600:.2f} CPU-hours; {paid(usd)}"
    table = text_table([("stage", "time", "CPU-s", "peak memory", "paid"), *rows, total]).splitlines()
    return [head, *(f"  {line}" for line in table)]


def follow(root: Path, run: LocalRun, job: str) -> Iterator[str]:
    """Return the text of a stage's log as it grows, until the run ends."""
    return growing(log_of(root, run.name, job), lambda: not is_running(root, run))


def _peak(stage: LocalStage) -> str:
    if not stage.peak_mib:
        return ""
    return f"{stage.peak_mib:,} MiB" if stage.own_peak else f"{stage.peak_mib:,} MiB (process so far)"


def _doing(stage: LocalStage) -> str:
    if stage.error:
        return stage.error[:100]
    if stage.state != "running" or not stage.what:
        return ""
    left = "" if stage.seconds_left is None else f", {duration(stage.seconds_left)} left"
    return f"{stage.what}: {stage.done} of {stage.total}{left}"
