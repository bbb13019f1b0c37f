"""Recorded counts of a benchmark of one's own: written where it is imported, read by commands that do not import it.

    record(config, benchmark)          # by every stage that counts its tasks, and by `r2v check-env`
    counts = recorded(config)          # None: the module was not imported since its last change
    check_command(config)              # r2v check-env shop:Shop --overrides 'env.options={"num_tasks": 60}'

A record's name is the hash of all that its counts depend on: the content of the module's file, the class, its options
and the split of tasks. An edited module has no record until it is imported again.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from r2v.config import Config, load
from r2v.data.schema import from_dict
from r2v.data.split import SPLITS, assign
from r2v.envs.base import Benchmark
from r2v.envs.pace import Pace, pace_of
from r2v.extensions import is_dotted, source_sha256
from r2v.storage.artifact_manifest import Damaged, json_sha256
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed, read_hashed
from r2v.storage.paths import BENCHMARK_COUNTS

_KEYS = ("env.options", "data.split_by", "data.split_seed")
"""Configuration keys that the counts of a benchmark depend on."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkCounts:
    """Counts of a benchmark under one configuration."""

    pace: Pace
    """Without its basis, which is a field of its own."""
    basis: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, int]
    """Split -> number of tasks."""
    mutating: dict[str, list[bool]]
    """Split -> for each task in order, true if it changes a shared world (`Task.mutates`)."""
    snapshot: bool
    deterministic: bool


def counts_of(config: Config, benchmark: Benchmark) -> BenchmarkCounts:
    """Return the counts of a loaded benchmark. Raise UsageError for an invalid pace."""
    tasks, able = benchmark.tasks(), benchmark.capabilities
    split_of = assign(tasks, by=config.data.split_by, seed=config.data.split_seed)
    splits, shared = Counter(split_of.values()), [] if able.parallel else tasks
    pace = pace_of(config.env.benchmark, benchmark)
    return BenchmarkCounts(
        pace=replace(pace, basis={}),
        basis=dict(pace.basis),
        tasks={split: splits[split] for split in SPLITS},
        mutating={split: [task.mutates for task in shared if split_of[task.task_id] == split] for split in SPLITS},
        snapshot=able.snapshot,
        deterministic=able.deterministic,
    )


def record(config: Config, benchmark: Benchmark, root: Path = Path()) -> None:
    """Record the counts of an imported benchmark of one's own; none of R2V's, which list their tasks themselves."""
    if is_dotted(config.env.benchmark) and recorded(config, root) != (counts := counts_of(config, benchmark)):
        write_json(_path(config, root), hashed(asdict(counts)))


def recorded(config: Config, root: Path = Path()) -> BenchmarkCounts | None:
    """Return the recorded counts of the configured benchmark's current module; None if there are none or the record is
    damaged. Raise UsageError if there is no such module."""
    try:
        counts = from_dict(BenchmarkCounts, read_hashed(_path(config, root)))
    except (FileNotFoundError, Damaged, ValueError):
        return None
    whole = set(SPLITS) == counts.tasks.keys() == counts.mutating.keys() and min(counts.tasks.values()) >= 0
    return counts if whole else None


def check_command(config: Config) -> str:
    """Return the command that imports, checks and counts the configured benchmark."""
    usual = load(None)
    changed = {key: value for key in _KEYS if (value := _value(config, key)) != _value(usual, key)}
    overrides = [f"{key}={json.dumps(value)}" for key, value in changed.items()]
    words = ["r2v", "check-env", config.env.benchmark, *(["--overrides", *overrides] if overrides else [])]
    return shlex.join(words)


def _path(config: Config, root: Path) -> Path:
    spec = config.env.benchmark
    content = source_sha256("env.benchmark", spec)
    return (
        root / BENCHMARK_COUNTS / f"{json_sha256([spec, content, *(_value(config, key) for key in _KEYS)])[:32]}.json"
    )


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
