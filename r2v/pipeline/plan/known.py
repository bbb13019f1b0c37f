"""What a plan knows of a benchmark before it plays: its tasks in each split, its pace, and what its worlds can do.

known = known_of(config, load_benchmark(config.env.benchmark))
known = known_of(config, None)          # of one that is not loaded: what is declared for its name, or assumed
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from r2v.config import Config
from r2v.config.evaluation import IMPUTED
from r2v.data.registry import DataRegistry
from r2v.data.split import SPLITS, assign
from r2v.envs.base import BENCHMARKS, Benchmark, benchmark_class, load_benchmark
from r2v.envs.pace import Pace, pace_of
from r2v.errors import InputError
from r2v.extensions import is_dotted
from r2v.pipeline.inputs import place_of
from r2v.storage.artifact_manifest import read_artifact_manifest

_SHARES = {"train": 0.7, "calibration": 0.1, "evaluation": 0.2, "heldout": 0.0}
"""Of a benchmark whose tasks cannot be listed."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Of one benchmark under one configuration."""

    pace: Pace
    tasks: Mapping[str, int]
    """Split -> number of tasks."""
    copies: bool
    """Whether worlds can be copied (`Capabilities.snapshot`)."""
    deterministic: bool
    listed: bool
    """Whether the benchmark itself was asked; else tasks are estimated, and worlds are such as cannot be copied."""
    mutating: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    """Split -> of each of its tasks, in order, whether it changes a world that others share (`Task.mutates`); a split
    without one may be left out."""

    @property
    def changing(self) -> int:
        """Tasks that change a world which others share: played, never branched."""
        return sum(sum(flags) for flags in self.mutating.values())

    def of_split(self, split: str, limit: int | None) -> int:
        """Tasks of a split that are played under a limit (None: all)."""
        return self.tasks[split] if limit is None else min(limit, self.tasks[split])

    def branched_of_split(self, split: str, limit: int | None) -> int:
        """Of these tasks, those that may be branched."""
        played = self.of_split(split, limit)
        return played - sum(self.mutating.get(split, ())[:played])


def known_of(config: Config, benchmark: Benchmark | None) -> Known:
    """What is known without playing. Raises UsageError for a declaration that is none."""
    pace = pace_of(config.env.benchmark, benchmark)
    if benchmark is None:
        counted = {split: int(pace.tasks * share) for split, share in _SHARES.items()}
        counted["evaluation"] = pace.tasks - counted["train"] - counted["calibration"]
        spread = {split: _spread(pace.changing, count) for split, count in counted.items()}
        return Known(pace=pace, tasks=counted, copies=False, deterministic=True, listed=False, mutating=spread)
    tasks, able = benchmark.tasks(), benchmark.capabilities
    split_of = assign(tasks, by=config.data.split_by, seed=config.data.split_seed)
    splits = Counter(split_of.values())
    shared = [] if able.parallel else tasks
    return Known(
        pace=pace,
        tasks={split: splits[split] for split in SPLITS},
        copies=able.snapshot,
        deterministic=able.deterministic,
        listed=True,
        mutating={split: [task.mutates for task in shared if split_of[task.task_id] == split] for split in SPLITS},
    )


def _spread(share: float, count: int) -> list[bool]:
    """Of `count` tasks, whether each is one of a share that is spread evenly."""
    return [int((index + 1) * share) > int(index * share) for index in range(count)]


def known_here(config: Config, root: Path = Path(), *, imports: bool = False) -> Known:
    """The same with what earlier runs under `root` have measured, which comes first. R2V's own benchmarks are asked; a
    benchmark by dotted path where it may be imported."""
    name = config.env.benchmark
    asked = (name in BENCHMARKS and _listed_here(config)) or (imports and is_dotted(name))
    known = known_of(config, load_benchmark(name, config.env.options) if asked else None)
    return Known(**{**vars(known), "pace": _played(config, known.pace, root)})


def _listed_here(config: Config) -> bool:
    """Whether one of R2V's own benchmarks can list its tasks on this machine, as it says itself."""
    says = getattr(benchmark_class(config.env.benchmark), "listed_here", None)
    return says is None or bool(says(**config.env.options))


def _played(config: Config, pace: Pace, root: Path) -> Pace:
    """The pace with what the benchmark's latest run and this configuration's router features have measured."""
    runs = [run for run in DataRegistry(root / "data").query(benchmark=config.env.benchmark) if run.status == "done"]
    if runs:
        path = runs[-1].output_dir / "collection_log.jsonl"
        if lengths := _lengths(path):
            pace = pace.measured(f"measured in run {runs[-1].run_id}", teacher_steps=fmean(lengths))
    place = place_of(config, "router_features", root)
    try:
        found = read_artifact_manifest(place.resolve()).summary if place.exists() else {}
        if found.get("labels") == IMPUTED:  # of a teacher's states: nobody played them
            return pace
        steps, tasks, other = (float(found[key]) for key in ("n_steps", "n_tasks", "n_disagreements"))
    except (InputError, KeyError, TypeError, ValueError):
        return pace
    if steps <= 0 or tasks <= 0:
        return pace
    episodes = tasks * len(config.router.seeds)
    return pace.measured(f"measured in {place}", student_steps=steps / episodes, differing=other / steps)


def _lengths(log: Path) -> list[float]:
    """The steps of each episode that a collection's log tells of; none where it cannot be read."""
    try:
        return [float(json.loads(line)["n_steps"]) for line in log.read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError):
        return []
