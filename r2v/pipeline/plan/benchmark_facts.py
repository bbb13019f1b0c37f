"""Facts of a benchmark for a plan, without playing: its tasks in each split, its pace, and its worlds' capabilities.

facts = facts_of(config, load_benchmark(config.env.benchmark))
facts = facts_of(config, None)          # without loading it: declared for its name, or assumed
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from r2v.config import Config
from r2v.config.evaluation import IMPUTED
from r2v.data.registry import DataRegistry
from r2v.envs.base import BENCHMARKS, Benchmark, benchmark_class, load_benchmark
from r2v.envs.pace import Pace, pace_of
from r2v.errors import InputError
from r2v.extensions import is_dotted
from r2v.pipeline.inputs import place_of
from r2v.pipeline.plan.recorded import BenchmarkCounts, check_command, counts_of, recorded
from r2v.storage.artifact_manifest import read_artifact_manifest

UNCOUNTED_FIGURE = "?"
"""Printed for an uncounted figure of a benchmark of one's own."""
_SHARES = {"train": 0.7, "calibration": 0.1, "evaluation": 0.2, "heldout": 0.0}
"""Shares of the splits of a benchmark whose tasks cannot be listed."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkFacts:
    """Facts of one benchmark under one configuration."""

    pace: Pace
    tasks: Mapping[str, float]
    """Split -> number of tasks; nan if uncounted."""
    copies: bool
    """True if worlds can be copied (`Capabilities.snapshot`)."""
    deterministic: bool
    listed: bool
    """True if the benchmark itself listed its tasks; else they are estimated, and worlds taken as not copyable."""
    mutating: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    """Split -> for each task in order, true if it changes a shared world (`Task.mutates`); may lack splits without."""
    to_count: str = ""
    """Command that counts an uncounted benchmark of one's own; "" if its tasks are counted or estimated."""

    @property
    def changing(self) -> int:
        """Number of tasks that change a shared world: played, never branched."""
        return sum(sum(flags) for flags in self.mutating.values())

    def of_split(self, split: str, limit: float | None) -> float:
        """Return the number of a split's tasks under a limit (None: all); nan if uncounted."""
        return self.tasks[split] if limit is None else min(self.tasks[split], limit)  # a nan stays one in this order

    def branched_of_split(self, split: str, limit: float | None) -> float:
        """Return the number of these tasks that may be branched."""
        played = self.of_split(split, limit)
        return played if math.isnan(played) else played - sum(self.mutating.get(split, ())[: int(played)])


def facts_of(config: Config, benchmark: Benchmark | None) -> BenchmarkFacts:
    """Return the facts of a benchmark without playing it. Raise UsageError for an invalid declaration."""
    if benchmark is not None:
        return _counted(counts_of(config, benchmark))
    pace = pace_of(config.env.benchmark, None)
    counted = {split: int(pace.tasks * share) for split, share in _SHARES.items()}
    counted["evaluation"] = pace.tasks - counted["train"] - counted["calibration"]
    spread = {split: _spread(pace.changing, count) for split, count in counted.items()}
    return BenchmarkFacts(pace=pace, tasks=counted, copies=False, deterministic=True, listed=False, mutating=spread)


def _counted(counts: BenchmarkCounts) -> BenchmarkFacts:
    return BenchmarkFacts(
        pace=replace(counts.pace, basis=counts.basis),
        tasks=counts.tasks,
        copies=counts.snapshot,
        deterministic=counts.deterministic,
        listed=True,
        mutating=counts.mutating,
    )


def _spread(share: float, count: int) -> list[bool]:
    """Return `count` flags of which a share, spread evenly, is true."""
    return [int((index + 1) * share) > int(index * share) for index in range(count)]


def uncounted_line(config: Config, facts: BenchmarkFacts) -> str:
    """Return the reason that a benchmark's figures are unknown, with the command that counts them, in one line."""
    return (
        f"{UNCOUNTED_FIGURE}: {config.env.benchmark} was not imported to count its tasks, and nobody has counted those "
        f"of its module and env.options as they are; `{facts.to_count}` imports it, checks it and records the counts"
    )


def facts_here(config: Config, root: Path = Path()) -> BenchmarkFacts:
    """Return the facts of the configured benchmark, its pace measured by earlier runs under `root` where there are any.
    R2V's own benchmarks list their tasks; one by dotted path is not imported, and its recorded counts are used."""
    name = config.env.benchmark
    if is_dotted(name):
        counts = recorded(config, root)
        facts = _counted(counts) if counts else _uncounted(config)
    else:
        listed = name in BENCHMARKS and _listed_here(config)
        facts = facts_of(config, load_benchmark(name, config.env.options) if listed else None)
    return replace(facts, pace=_played(config, facts.pace, root))


def _uncounted(config: Config) -> BenchmarkFacts:
    estimated = facts_of(config, None)
    tasks = dict.fromkeys(estimated.tasks, math.nan)
    return replace(estimated, tasks=tasks, mutating={}, to_count=check_command(config))


def _listed_here(config: Config) -> bool:
    """True if one of R2V's own benchmarks can list its tasks on this machine."""
    listed_here = getattr(benchmark_class(config.env.benchmark), "listed_here", None)
    return listed_here is None or bool(listed_here(**config.env.options))


def _played(config: Config, pace: Pace, root: Path) -> Pace:
    """Return the pace as measured by the benchmark's latest run and this configuration's router features."""
    runs = [run for run in DataRegistry(root / "data").query(benchmark=config.env.benchmark) if run.status == "done"]
    if runs:
        path = runs[-1].output_dir / "collection_log.jsonl"
        if lengths := _lengths(path):
            pace = pace.measured(f"measured in run {runs[-1].run_id}", teacher_steps=fmean(lengths))
    link = place_of(config, "router_features", root)
    try:
        summary = read_artifact_manifest(link.resolve()).summary if link.exists() else {}
        if summary.get("labels") == IMPUTED:  # the teacher's recorded states: the small policy played none of them
            return pace
        steps, tasks, other = (float(summary[key]) for key in ("n_steps", "n_tasks", "n_disagreements"))
    except (InputError, KeyError, TypeError, ValueError):
        return pace
    if steps <= 0 or tasks <= 0:
        return pace
    episodes = tasks * len(config.router.seeds)
    return pace.measured(f"measured in {link}", student_steps=steps / episodes, differing=other / steps)


def _lengths(log: Path) -> list[float]:
    """Return the steps of each episode in a collection's log; none if it is unreadable."""
    try:
        return [float(json.loads(line)["n_steps"]) for line in log.read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError):
        return []
