"""Run manifest: the name and the provenance of one data-collection run, in `run_manifest.json`.

A run is named `{benchmark}_{provider}_{model}_{YYYYMMDDTHHMMSS}`. Model names keep their dots and hyphens;
any other character becomes `--` and two hex digits for each of its bytes, so the name can be read back.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from r2v.data.episode import IMPORTED, to_dict
from r2v.data.schema import from_dict
from r2v.data.tools import RecordedTool, Tools, united
from r2v.errors import InputError, UsageError
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed

log = logging.getLogger("r2v")

RUN_MANIFEST = "run_manifest.json"
RUN_SCHEMA = "1"
RUN_ID = re.compile(r"[a-z0-9]+_[a-z0-9]+_[A-Za-z0-9.\-]+_\d{8}T\d{6}(-\d+)?")

Status = Literal["running", "done", "failed", "partial", "interrupted"]
"""`interrupted` is never written: it is how a run still marked running shows once its process is gone."""


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """A run's provenance and figures. Costs in USD, times in UTC; counts are as of `updated_at`."""

    run_id: str
    benchmark: str
    provider: str
    model_name: str
    output_dir: Path
    fingerprint: str
    started_at: str
    updated_at: str
    config: dict[str, Any] = field(default_factory=dict)
    finished_at: str | None = None
    status: Status = "running"
    error: str | None = None
    n_episodes: int = 0
    n_success: int = 0
    n_env_faults: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    """Episodes in which the model failed to act, by outcome."""
    total_cost_usd: float = 0.0
    wall_time_seconds: float = 0.0
    data_sha256: str | None = None
    host: str = ""
    git_commit: str | None = None
    python_version: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    tools: tuple[RecordedTool, ...] | None = None
    """What the agent could call; None where an earlier R2V recorded the run."""
    superseded: tuple[dict[str, Any], ...] = ()
    """Fingerprint and config of earlier parts of the run, where it was continued with `force`."""
    schema_version: str = RUN_SCHEMA
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def imported(self) -> bool:
        """Whether its episodes were recorded by another tool, so that nothing was executed here."""
        return self.provider == IMPORTED

    @property
    def success_rate(self) -> float:
        """Successes among the episodes the environment could measure; NaN when there are none, and where the run was
        imported, so that nothing was executed."""
        if self.imported:
            return float("nan")
        measured = self.n_episodes - self.n_env_faults
        return self.n_success / measured if measured else float("nan")

    @property
    def all_faults(self) -> bool:
        """Whether the world broke in every episode, so that nothing was measured."""
        return 0 < self.n_episodes == self.n_env_faults

    @property
    def trajectories(self) -> Path:
        """The run's episodes."""
        return self.output_dir / "trajectories.jsonl"


def read_record(folder: Path) -> dict[str, Any]:
    """The manifest in `folder` as it is written. Raises InputError naming the file."""
    path = folder / RUN_MANIFEST
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        version = record["schema_version"]
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; the folder holds no run") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: not a run manifest ({type(error).__name__}: {error}); restore it") from error
    if version != RUN_SCHEMA:
        raise InputError(f"{path}: schema_version {version}, this R2V reads {RUN_SCHEMA}; use the R2V that wrote it")
    recorded = record.pop("sha256", None)  # a manifest that somebody wrote by hand has none
    if recorded is not None and recorded != (now := json_sha256(record)):
        raise InputError(f"{path} is damaged: its content is {now[:12]}, it says {recorded!s:.12}; restore it")
    return record


def read_manifest(folder: Path) -> RunManifest:
    """The manifest of the run in `folder`, wherever that folder has been moved to."""
    record = {**read_record(folder), "output_dir": folder}
    record.pop("success_rate", None)
    try:
        manifest = from_dict(RunManifest, record)
        _require_counts(manifest)
        return manifest
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / RUN_MANIFEST}: not a run manifest ({error}); restore it") from error


def _require_counts(run: RunManifest) -> None:
    """Raise ValueError for figures that no run has."""
    if not 0 <= run.n_success + run.n_env_faults <= run.n_episodes or min(run.n_success, run.n_env_faults) < 0:
        raise ValueError(f"{run.n_success} successes and {run.n_env_faults} faults among {run.n_episodes} episodes")
    if not all(math.isfinite(value) and value >= 0 for value in (run.total_cost_usd, run.wall_time_seconds)):
        raise ValueError(f"costs {run.total_cost_usd} USD and {run.wall_time_seconds} seconds")
    if run.status not in get_args(Status):
        raise ValueError(f"status {run.status!r}; allowed: {', '.join(get_args(Status))}")


def write_manifest(manifest: RunManifest) -> None:
    """Put the manifest into the run's folder, whole or not at all; with a success rate, or null for none."""
    rate = manifest.success_rate
    record = {
        **to_dict(manifest),
        "output_dir": manifest.output_dir.as_posix(),
        "success_rate": None if math.isnan(rate) else rate,
    }
    write_json(manifest.output_dir / RUN_MANIFEST, hashed(record))


def tools_of_runs(runs: Sequence[RunManifest]) -> Tools | None:
    """The tools of these runs: of the executed ones among them, where there are any, else of the imported ones. None
    where one of those recorded none. A tool that they define in several ways is warned of."""
    executed = [run for run in runs if not run.imported] or runs
    recorded = [run.tools for run in executed if run.tools is not None]
    if len(recorded) < len(executed):
        return None
    tools, several = united(tool for listed in recorded for tool in listed)
    if several:
        log.warning("  the runs define %s in several ways; the first counts", ", ".join(several))
    return tools


def run_prefix(benchmark: str, provider: str, model_name: str) -> str:
    """The beginning of every run id of this benchmark and model, to the underscore before the time. A class by dotted
    path, of a benchmark or a provider, gives its own name alone."""
    parts = [re.sub(r"[^a-z0-9]", "", name.rpartition(":")[2].lower()) for name in (benchmark, provider)]
    if not all(parts) or not model_name:
        raise UsageError(
            f"a run needs a benchmark, a provider and a model, got {benchmark!r}, {provider!r}, {model_name!r}"
        )
    return "_".join([*parts, escape_model(model_name)]) + "_"


def time_stamp(now: datetime) -> str:
    """The last part of a run id."""
    return now.strftime("%Y%m%dT%H%M%S")


def escape_model(name: str) -> str:
    """A model name as it stands in a run id.

    >>> escape_model("meta-llama/Llama-3.1-8B")
    'meta-llama--2FLlama-3.1-8B'
    """
    return re.sub(r"[^A-Za-z0-9.-]|-(?=-)", lambda m: "".join(f"--{b:02X}" for b in m[0].encode()), name)
