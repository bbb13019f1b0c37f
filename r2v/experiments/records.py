"""Records of an experiment: `experiment.json`, which says of every run whether it is pending, running, completed or
failed, when, with which return code, from which configuration and where its results are.

    outputs/experiments/<name>_<time>/
        spec.yaml                 the specification as it was
        experiment.json           written whole at every change, by the one process that has the experiment's lease
        configs/run_001.yaml      the resolved configuration: what the run reads, byte for byte
        runs/run_001/             output.log and what the run leaves: metrics.json, metrics.jsonl, outcomes.csv
        decisions.jsonl           of early stopping, one line a decision
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
"""What a run prints."""
RETURN_CODE = "return_code"
"""What a run's launcher leaves when the run has ended, whoever waits for it."""
FORMER_EXPERIMENTS = "experiments"
"""Where the first guide had the folders of experiments."""


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
    """Of early stopping; None without it."""
    base: str = ""
    started_at: str | None = None
    completed_at: str | None = None
    return_code: int | None = None
    process: str | None = None
    """The launcher while it runs: host, machine, pid, start time (`r2v.storage.lease.Owner`)."""
    chain: str | None = None
    """What it is in Slurm's queue: the chain of its jobs, or the comment of its one job; None: a process."""
    reused_from: str | None = None
    """The experiment and run whose result this is."""
    peak_bytes: int | None = None
    gpu_bytes: list[int] = field(default_factory=list)
    """Of each GPU, what was taken while it was the only run; empty where that was not measured."""
    cpu_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentRecord:
    """All that is recorded of an experiment."""

    name: str
    mode: str
    spec: str
    spec_sha256: str
    created_at: str
    runs: tuple[RunRecord, ...] = ()
    metric: str | None = None
    goal: str = "max"
    program: dict[str, str] = field(default_factory=dict)
    """Files that its command names, and their hashes."""

    def run(self, name: str) -> RunRecord:
        """The run of this name. Raises UsageError with the nearest one."""
        for one in self.runs:
            if one.run == name:
                return one
        raise UsageError(f"{name}: no such run; {nearest(name, [one.run for one in self.runs])}")

    def with_run(self, changed: RunRecord) -> ExperimentRecord:
        """The record with one run replaced, or added behind the others."""
        if any(one.run == changed.run for one in self.runs):
            return replace(self, runs=tuple(changed if one.run == changed.run else one for one in self.runs))
        return replace(self, runs=(*self.runs, changed))

    def count(self, status: Status) -> int:
        """How many runs have a status."""
        return sum(one.status == status for one in self.runs)


def now() -> str:
    """The time as records have it: UTC, in ISO 8601, with microseconds, for runs may be short."""
    return datetime.now(UTC).isoformat()


def new_folder(name: str, below: Path = EXPERIMENTS) -> Path:
    """Make the folder <name>_<time>, which is nobody else's."""
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
    """Replace `experiment.json`. Only who holds the experiment's lease may."""
    write_json(folder / EXPERIMENT, asdict(record))


def read_record(folder: Path) -> ExperimentRecord:
    """The record of an experiment. Raises InputError where there is none, or one that is damaged."""
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
    names = {one.name for one in fields(cls)}
    return {key: value for key, value in values.items() if key in names}


def experiments() -> Iterator[Path]:
    """The folders of all experiments, the oldest first."""
    found = [path.parent for path in EXPERIMENTS.glob(f"*/{EXPERIMENT}")]
    yield from sorted(found, key=lambda folder: (_age(folder), folder.name))


def _age(folder: Path) -> str:
    try:
        return read_record(folder).created_at
    except InputError:
        return ""


def chosen(word: str | None) -> Path:
    """The folder of the experiment that a word means: its folder as a path, its folder's name, or its name, of which
    the newest is taken; None: the newest of all. Raises InputError naming those there are."""
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
        if word in named or path.name == folder.name or path.resolve() == folder.resolve():
            return folder
        if folder.resolve() in path.resolve().parents:
            return folder
    names = [folder.name for folder in there]
    raise InputError(f"{word}: no such experiment; {nearest(word, names) if names else 'there is none'}")
