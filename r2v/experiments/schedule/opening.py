"""Opening an experiment: its folder, the record with a run for every point, and what other experiments have done."""

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
    """How an experiment is run; none of it changes a result."""

    resume: bool = False
    limit: int | None = None
    """Runs to start at most."""
    slots: int | Literal["auto"] = 1
    """Runs that work at once; auto: as many as fit, by what the first one needed."""
    flags: tuple[str, ...] = ()
    """Handed on to every run of a simulation."""
    fresh: bool = False
    """Whether points that were completed elsewhere are run again."""
    lost: bool = False
    """Whether runs that were started on other machines are taken for dead."""
    allow_spec_change: bool = False
    slurm: int | None = None
    """Runs that are in Slurm's queue at most; None: they run here."""
    look_every: float = 10.0
    """Seconds between two questions to Slurm."""


def folder_of(spec: ExperimentSpec, options: RunOptions) -> Path:
    """The folder of the experiment: the newest of its name where it is gone on with, else a new one."""
    if options.resume:
        named = [folder for folder in experiments() if folder.name.rpartition("_")[0] == spec.name]
        if named:
            return named[-1]
        logger.info("  nothing to resume: %s has no experiment yet; it begins", spec.name)
    return new_folder(spec.name)


def opened(folder: Path, spec: ExperimentSpec, points: Sequence[Point], options: RunOptions) -> ExperimentRecord:
    """The record of the experiment with a run for every point. Raises UsageError where the specification is another
    one and that is not allowed."""
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
    known = {run.identity: run for run in record.runs if not run.rung}
    _require_same_program(folder, record, spec, {point.identity for point in points} - set(known))
    if record.spec_sha256 != spec.sha256 and {point.identity for point in points} != set(known):
        added = sum(point.identity not in known for point in points)
        if not options.allow_spec_change:
            raise UsageError(
                f"{spec.path}: is not what {folder} was begun with ({added} points are new); "
                "--allow-spec-change appends them, without --resume another experiment begins"
            )
    number = max((int(run.run.split("_")[1]) for run in record.runs), default=0)
    first_rung = None if spec.asha is None else 0
    for point in points:
        if point.identity in known:
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
    """Raises UsageError where the points are new because of what runs them: their runs would be compared with those of
    another program."""
    if not record.runs or not new:
        return
    before, current = record.program, program_of(spec)
    changed = sorted(name for name in before.keys() & current.keys() if before[name] != current[name])
    if not changed and record.spec_sha256 != spec.sha256:
        return  # the specification itself has other points
    named = ", ".join(changed) or "a file or a model that its configurations name"
    raise UsageError(
        f"{named}: changed since {folder} was begun, so new runs could not be compared with those there; put it back, "
        "or run the sweep anew, without --resume, in a folder of its own (--fresh: what is done elsewhere too)"
    )


def completed_elsewhere(but: Path) -> dict[str, tuple[Path, RunRecord]]:
    """Every completed run of the project's other experiments by its point's identity, the newest last."""
    found: dict[str, tuple[Path, RunRecord]] = {}
    for folder in experiments():
        if folder.resolve() == but.resolve():
            continue
        for run in read_record(folder).runs:
            if run.status == "completed" and run.rung is None and Path(run.run_dir).is_dir():
                found[run.identity] = folder, run
    return found
