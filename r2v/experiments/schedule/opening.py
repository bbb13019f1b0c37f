"""Opening an experiment: its folder, its record with a run per point, and completed runs of other experiments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from r2v.errors import UsageError
from r2v.experiments.records import (
    EXPERIMENT,
    SPEC_COPY,
    ExperimentRecord,
    RunRecord,
    experiments,
    new_folder,
    now,
    read_record,
    write_record,
)
from r2v.experiments.specification.expansion import Point, program_of
from r2v.experiments.specification.spec import ExperimentSpec
from r2v.log import logger
from r2v.storage.files import write_text


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of running an experiment; none of them changes a result."""

    resume: bool = False
    limit: int | None = None
    """Largest number of runs to start."""
    slots: int | Literal["auto"] = 1
    """Number of runs at once; auto: as many as fit, by the memory of the first one."""
    flags: tuple[str, ...] = ()
    """Flags passed to every run of a simulation."""
    fresh: bool = False
    """True: run points again that another experiment has completed."""
    lost: bool = False
    """True: treat runs started on other machines as dead."""
    allow_spec_change: bool = False
    slurm: int | None = None
    """Largest number of runs in Slurm's queue; None: run locally."""
    look_every: float = 10.0
    """Seconds between two queries of Slurm."""


def folder_of(spec: ExperimentSpec, options: RunOptions) -> Path:
    """Return the folder of the experiment: with `resume` the newest of its name, else a new one."""
    if options.resume:
        named = [folder for folder in experiments() if folder.name.rpartition("_")[0] == spec.name]
        if named:
            return named[-1]
        logger.info("  nothing to resume, new experiment: name=%s", spec.name)
    return new_folder(spec.name)


def opened(folder: Path, spec: ExperimentSpec, points: Sequence[Point], options: RunOptions) -> ExperimentRecord:
    """Return the experiment's record with a run for every point. Raise UsageError for a changed specification that
    `options` does not allow."""
    if (folder / EXPERIMENT).exists():
        record = read_record(folder)
    else:
        record = ExperimentRecord(
            name=spec.name,
            mode=spec.mode,
            spec=str(spec.path),
            spec_sha256=spec.sha256,
            created_at=now(),
            program=program_of(spec),
        )
    runs_by_identity = {run.identity: run for run in record.runs if not run.rung}
    _require_same_program(folder, record, spec, {point.identity for point in points} - set(runs_by_identity))
    if record.spec_sha256 != spec.sha256 and {point.identity for point in points} != set(runs_by_identity):
        added = sum(point.identity not in runs_by_identity for point in points)
        if not options.allow_spec_change:
            raise UsageError(
                f"{spec.path}: is not what {folder} was begun with ({added} points are new); "
                "--allow-spec-change appends them, without --resume another experiment begins"
            )
    number = max((int(run.run.split("_")[1]) for run in record.runs), default=0)
    first_rung = None if spec.asha is None else 0
    for point in points:
        if point.identity in runs_by_identity:
            continue
        number += 1
        run = f"run_{number:03d}"
        record = record.with_run(
            RunRecord(
                run=run,
                status="pending",
                config_path=str(folder / "configs" / f"{run}.yaml"),
                run_dir=str(folder / "runs" / run),
                identity=point.identity,
                values=point.values,
                seed=point.seed,
                rung=first_rung,
                base=str(point.base),
            )
        )
    record = replace(record, spec_sha256=spec.sha256, metric=spec.metric, goal=spec.goal)
    write_text(folder / SPEC_COPY, spec.path.read_text())
    write_record(folder, record)
    return record


def _require_same_program(folder: Path, record: ExperimentRecord, spec: ExperimentSpec, new: Collection[str]) -> None:
    """Raise UsageError if points are new because their program changed: their runs would be compared with those of the
    old program."""
    if not record.runs or not new:
        return
    before, current = record.program, program_of(spec)
    changed = sorted(name for name in before.keys() & current.keys() if before[name] != current[name])
    if not changed and record.spec_sha256 != spec.sha256:
        return  # the specification itself has new points
    named = ", ".join(changed) or "a file or a model that its configurations name"
    raise UsageError(
        f"{named}: changed since {folder} was begun, so new runs could not be compared with those there; put it back, "
        "or run the sweep anew, without --resume, in a folder of its own (--fresh: what is done elsewhere too)"
    )


def completed_elsewhere(but: Path) -> dict[str, tuple[Path, RunRecord]]:
    """Return identity of a point -> (experiment, run) of its newest completed run outside the experiment `but`."""
    completed: dict[str, tuple[Path, RunRecord]] = {}
    for folder in experiments():
        if folder.resolve() == but.resolve():
            continue
        for run in read_record(folder).runs:
            if run.status == "completed" and run.rung is None and Path(run.run_dir).is_dir():
                completed[run.identity] = folder, run
    return completed
