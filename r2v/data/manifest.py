"""Run manifest: name and provenance of one data-collection run, in `run_manifest.json`.

A run is named `{benchmark}_{provider}_{model}_{YYYYMMDDTHHMMSS}`. Model names keep their dots and hyphens; each byte of
any other character becomes `--` and two hex digits, so that the name can be decoded.
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
"""`interrupted` is never written: it is shown for a run marked running whose process is gone."""


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """Provenance and figures of a run. Costs in USD, times in UTC; counts are as of `updated_at`."""

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
    """Outcome -> number of episodes in which the model failed to act."""
    total_cost_usd: float = 0.0
    wall_time_seconds: float = 0.0
    data_sha256: str | None = None
    host: str = ""
    git_commit: str | None = None
    python_version: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    tools: tuple[RecordedTool, ...] | None = None
    """Tools of the agent; None in runs of earlier versions."""
    superseded: tuple[dict[str, Any], ...] = ()
    """Fingerprint and config of earlier parts of a run continued with `force`."""
    schema_version: str = RUN_SCHEMA
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def imported(self) -> bool:
        """True if another tool recorded the episodes, so that nothing was executed here."""
        return self.provider == IMPORTED

    @property
    def success_rate(self) -> float:
        """Share of successes among the episodes without environment fault; NaN without any, and for imported runs."""
        if self.imported:
            return float("nan")
        measured = self.n_episodes - self.n_env_faults
        return self.n_success / measured if measured else float("nan")

    @property
    def all_faults(self) -> bool:
        """True if the environment failed in every episode, so that nothing was measured."""
        return 0 < self.n_episodes == self.n_env_faults

    @property
    def trajectories(self) -> Path:
        """File of the run's episodes."""
        return self.output_dir / "trajectories.jsonl"


def read_record(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder` as JSON values. Raise InputError with the file's name."""
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
    recorded = record.pop("sha256", None)  # a manifest written by hand has none
    if recorded is not None and recorded != (now := json_sha256(record)):
        raise InputError(f"{path} is damaged: its content is {now[:12]}, it says {recorded!s:.12}; restore it")
    return record


def read_manifest(folder: Path) -> RunManifest:
    """Return the manifest of the run in `folder`, which may have been moved. Raise InputError with the file's name."""
    record = {**read_record(folder), "output_dir": folder}
    record.pop("success_rate", None)
    try:
        manifest = from_dict(RunManifest, record)
        _require_counts(manifest)
        return manifest
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / RUN_MANIFEST}: not a run manifest ({error}); restore it") from error


def _require_counts(run: RunManifest) -> None:
    """Raise ValueError for impossible figures."""
    if not 0 <= run.n_success + run.n_env_faults <= run.n_episodes or min(run.n_success, run.n_env_faults) < 0:
        raise ValueError(f"{run.n_success} successes and {run.n_env_faults} faults among {run.n_episodes} episodes")
    if not all(math.isfinite(value) and value >= 0 for value in (run.total_cost_usd, run.wall_time_seconds)):
        raise ValueError(f"costs {run.total_cost_usd} USD and {run.wall_time_seconds} seconds")
    if run.status not in get_args(Status):
        raise ValueError(f"status {run.status!r}; allowed: {', '.join(get_args(Status))}")


def write_manifest(manifest: RunManifest) -> None:
    """Write the manifest into the run's folder, atomically, with its success rate, null for NaN."""
    rate = manifest.success_rate
    record = {
        **to_dict(manifest),
        "output_dir": manifest.output_dir.as_posix(),
        "success_rate": None if math.isnan(rate) else rate,
    }
    write_json(manifest.output_dir / RUN_MANIFEST, hashed(record))


def tools_of_runs(runs: Sequence[RunManifest]) -> Tools | None:
    """Return the tools of the executed runs, or else of the imported ones; None if one of them recorded none. Log tools
    with several definitions."""
    executed = [run for run in runs if not run.imported] or runs
    recorded = [run.tools for run in executed if run.tools is not None]
    if len(recorded) < len(executed):
        return None
    tools, several = united(tool for listed in recorded for tool in listed)
    if several:
        log.warning("  tools with several definitions, using the first: tools=%s", ",".join(several))
    return tools


def run_prefix(benchmark: str, provider: str, model_name: str) -> str:
    """Return the common prefix of the run ids of this benchmark and model, up to the underscore before the time. Of a
    benchmark or provider given by dotted path only the class name is used."""
    parts = [re.sub(r"[^a-z0-9]", "", name.rpartition(":")[2].lower()) for name in (benchmark, provider)]
    if not all(parts) or not model_name:
        raise UsageError(
            f"a run needs a benchmark, a provider and a model, got {benchmark!r}, {provider!r}, {model_name!r}"
        )
    return "_".join([*parts, escape_model(model_name)]) + "_"


def time_stamp(now: datetime) -> str:
    """Return the last part of a run id."""
    return now.strftime("%Y%m%dT%H%M%S")


def escape_model(name: str) -> str:
    """Return a model name as encoded in a run id.

    >>> escape_model("meta-llama/Llama-3.1-8B")
    'meta-llama--2FLlama-3.1-8B'
    """
    return re.sub(r"[^A-Za-z0-9.-]|-(?=-)", lambda m: "".join(f"--{b:02X}" for b in m[0].encode()), name)
