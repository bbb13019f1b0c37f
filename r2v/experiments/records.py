"""Records of an experiment: `experiment.json` with the status, times, return code and paths of every run.

outputs/experiments/<name>_<time>/
    spec.yaml                 copy of the specification
    experiment.json           written whole at every change, by the process that holds the experiment's lease
    configs/run_001.yaml      the resolved configuration, exactly as the run reads it
    runs/run_001/             output.log and the run's files: metrics.json, metrics.jsonl, outcomes.csv
    decisions.jsonl           early stopping, one line per decision
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from r2v.constraints import shown
from r2v.errors import InputError, UsageError, nearest
from r2v.storage.files import write_json
from r2v.storage.paths import EXPERIMENTS

Status = Literal["pending", "running", "completed", "failed"]

EXPERIMENT = "experiment.json"
SPEC_COPY = "spec.yaml"
OUTPUT = "output.log"
"""Output of a run."""
RETURN_CODE = "return_code"
"""File that a run's launcher writes at the end of the run, for any process that waits for it."""
FORMER_EXPERIMENTS = "experiments"
"""Folder of experiments in the first guide."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of an experiment."""

    run: str
    status: Status
    config_path: str
    run_dir: str
    identity: str
    values: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    rung: int | None = None
    """Rung of early stopping; None without it."""
    base: str = ""
    started_at: str | None = None
    completed_at: str | None = None
    return_code: int | None = None
    process: str | None = None
    """The launcher while it runs: host, machine, pid, start time (`r2v.storage.lease.Owner`)."""
    chain: str | None = None
    """In Slurm's queue: the chain of its jobs, or the comment of its single job; None: a local process."""
    reused_from: str | None = None
    """Experiment and run whose result is reused."""
    peak_bytes: int | None = None
    gpu_bytes: list[int] = field(default_factory=list)
    """Memory used on each GPU while it was the only run; empty if not measured."""
    cpu_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentRecord:
    """Content of `experiment.json`."""

    name: str
    mode: str
    spec: str
    spec_sha256: str
    created_at: str
    runs: tuple[RunRecord, ...] = ()
    metric: str | None = None
    goal: str = "max"
    program: dict[str, str] = field(default_factory=dict)
    """Files named by its command -> their hashes."""

    def run(self, name: str) -> RunRecord:
        """Return the run of this name. Raise UsageError with the nearest name if it is missing."""
        for run in self.runs:
            if run.run == name:
                return run
        raise UsageError(f"{name}: no such run; {nearest(name, [run.run for run in self.runs])}")

    def with_run(self, changed: RunRecord) -> ExperimentRecord:
        """Return the record with one run replaced or appended."""
        if any(run.run == changed.run for run in self.runs):
            return replace(self, runs=tuple(changed if run.run == changed.run else run for run in self.runs))
        return replace(self, runs=(*self.runs, changed))

    def count(self, status: Status) -> int:
        """Return the number of runs with a status."""
        return sum(run.status == status for run in self.runs)


def now() -> str:
    """Return the current UTC time in ISO 8601, with microseconds, since runs may be short."""
    return datetime.now(UTC).isoformat()


def new_folder(name: str, below: Path = EXPERIMENTS) -> Path:
    """Make a new folder <name>_<time> and return it; a suffix distinguishes folders of the same second."""
    stem = f"{name}_{datetime.now(UTC):%Y%m%dT%H%M%S}"
    for number in range(1, 1000):
        folder = below / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise InputError(f"{below / stem}: is there a thousand times already")


def write_record(folder: Path, record: ExperimentRecord) -> None:
    """Replace `experiment.json`. Only the holder of the experiment's lease may call this."""
    write_json(folder / EXPERIMENT, asdict(record))


def read_record(folder: Path) -> ExperimentRecord:
    """Return the record of an experiment. Raise InputError if it is missing or damaged."""
    path = folder / EXPERIMENT
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        runs = tuple(RunRecord(**_known(RunRecord, run)) for run in values.pop("runs"))
        return ExperimentRecord(runs=runs, **_known(ExperimentRecord, values))
    except FileNotFoundError:
        raise InputError(
            f"{folder}: no experiment (no {EXPERIMENT}); r2v experiments list shows those there are"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged ({shown(str(error))}); start the experiment anew: what is done is reused"
        ) from None


def _known(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the class's fields; later versions may write more."""
    names = {each.name for each in fields(cls)}
    return {key: value for key, value in values.items() if key in names}


def experiments() -> Iterator[Path]:
    """Yield the folders of all experiments, oldest first."""
    folders = [path.parent for path in EXPERIMENTS.glob(f"*/{EXPERIMENT}")]
    yield from sorted(folders, key=lambda folder: (_age(folder), folder.name))


def _age(folder: Path) -> str:
    try:
        return read_record(folder).created_at
    except InputError:
        return ""


def chosen(word: str | None) -> Path:
    """Return the folder of an experiment given by path, folder name, or experiment name (the newest of that name);
    None: the newest of all. Raise InputError with the nearest name if it is missing."""
    there = list(experiments())
    if word is None:
        if not there:
            raise InputError(f"no experiment below {EXPERIMENTS}; r2v experiments run --exp SPEC starts one")
        return there[-1]
    path = Path(word)
    if path.parts[:1] == (FORMER_EXPERIMENTS,) and len(path.parts) > 1:
        path = EXPERIMENTS.joinpath(*path.parts[1:])
    for folder in reversed(there):
        named = (folder.name, folder.name.rpartition("_")[0])
        within = folder.resolve() in (path.resolve(), *path.resolve().parents)
        if word in named or path.name == folder.name or within:
            return folder
    names = [folder.name for folder in there]
    raise InputError(f"{word}: no such experiment; {nearest(word, names) if names else 'there is none'}")
