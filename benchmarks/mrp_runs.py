"""`make mrp` with several training seeds, on both kinds of kernels: r2v's lead, and the number of runs that show it.

    python -m benchmarks.mrp_runs                                   # makes the missing runs, then the table
    python -m benchmarks.mrp_runs --seeds 3 --kernels avx2          # one run per seed
    python -m benchmarks.mrp_runs --seeds                           # the table of the finished runs

A run is `r2v run --config configs/mrp.yaml --overrides seed=N` in a folder of its own,
outputs/mrp_runs/seed-<N>-<kernels>, so that nothing is shared between runs; a stopped one resumes. The kernels are
those of the processor, or AVX2 (`ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`): training is in float32, so they
make two slightly different students of one seed. Kept in benchmarks/outcomes/mrp/seed-<N>-<kernels>: the tables of the
results folder as they are (`TABLES`), run.json (commit, processor, CPU-seconds), and outcomes.jsonl.zst, success and
USD as billed of each task at each operating point.

The table, per condition: r2v's lead in APGR over each baseline, the mean over runs, with a 95 % bootstrap over training
seeds and tasks (both runs of a seed are drawn together, and all runs play the same tasks); the mean of each kind of
kernels; the least and the largest lead; and the number of runs in which a comparison that counts dollars shows r2v
above or below (verdicts of comparisons.csv, after Holm's correction). The last row takes each run's best baseline.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.student_pieces import DRAWS, bounds, generator_of
from r2v.config.methods import OURS, ROUTERS, STRONG, WEAK
from r2v.evaluation.measures.frontier import BILLED, Curve
from r2v.evaluation.measures.metrics import mean_over_seeds
from r2v.evaluation.measures.outcomes import measure
from r2v.evaluation.measures.statistics import FloatArray
from r2v.evaluation.setup import MAIN, read_setup, stored_episodes
from r2v.storage.artifact_manifest import git_commit
from r2v.storage.compression import lines_of
from r2v.storage.files import write_json, write_lines

OUTCOMES = Path("benchmarks/outcomes/mrp")
SEEDS = (0, 1, 2, 3, 4)
KERNELS = {"default": {}, "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}
"""Environment of a run by the name of its kernels."""
CONFIG = Path("configs/mrp.yaml")
TABLES = ("main_table.csv", "per_seed.csv", "comparisons.csv", "frontier.csv")
UNEQUAL_COST = "success_rate"
"""Metric of comparisons.csv that compares main points regardless of cost."""


def make(seed: int, kernels: str, config: Path, folder: Path) -> None:
    """Run the pipeline, without stages that no table needs, and keep the inputs of the tables."""
    work = Path("outputs/mrp_runs") / folder.name
    work.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), **KERNELS[kernels]}
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "r2v", "run", "--config", str(config.resolve())]
    command += ["--without", "ablations", "--overrides", "logging.report=false", f"seed={seed}"]
    subprocess.run(command, cwd=work, env=environment, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    (results,) = (path.parent for path in (work / "results").glob("*/setup.json"))
    capability = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    answer = subprocess.run([sys.executable, "-c", capability], env=environment, capture_output=True, text=True)
    keep(results, folder)
    write_json(
        folder / "run.json",
        {
            "seed": seed,
            "kernels": kernels,
            "cpu_capability": answer.stdout.strip(),
            "processor": _processor(),
            "commit": git_commit(),
            "date": f"{datetime.date.today()}",
            "cpu_seconds": round(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime),
        },
    )


def keep(results: Path, folder: Path) -> None:
    """Copy the tables of a results folder, and write the outcomes of its tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TABLES:
        shutil.copyfile(results / "structured_results" / name, folder / name)
    setup = read_setup(results)
    measured = measure(stored_episodes(results, setup), setup)
    lines = []
    for condition in setup.conditions:
        routed = [method for method in setup.methods if setup.frontier_points(condition, method)]
        keys = [(end, MAIN) for end in (WEAK, STRONG)]
        keys += [(method, point) for method in routed for point in setup.frontier_points(condition, method)]
        for method, point in keys:
            grid = measured.grids[condition, method, point]
            success, usd = (mean_over_seeds(grid[column])[0] for column in ("success", BILLED))
            record = {"condition": condition, "method": method, "point": point, "tasks": grid.tasks}
            lines.append(json.dumps({**record, "success": success.tolist(), "usd": usd.round(9).tolist()}))
    write_lines(folder / "outcomes.jsonl.zst", lines)


def _processor() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return models[0].partition(":")[2].strip() if models else platform.processor()


@dataclass(frozen=True)
class Run:
    """A run as it is kept."""

    facts: dict[str, Any]
    comparisons: list[dict[str, str]]
    outcomes: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Load a run from a folder of `OUTCOMES`."""
        with (folder / "comparisons.csv").open() as lines:
            comparisons = list(csv.DictReader(lines))
        outcomes = [json.loads(line) for line in lines_of(folder / "outcomes.jsonl.zst")]
        return cls(json.loads((folder / "run.json").read_text()), comparisons, outcomes)

    def methods(self, condition: str) -> list[str]:
        """Return the methods with a curve."""
        names = [row["method"] for row in self.outcomes if row["condition"] == condition]
        return [method for method in dict.fromkeys(names) if method not in (WEAK, STRONG)]

    def areas(self, condition: str, method: str, counts: FloatArray) -> FloatArray:
        """Return APGR in every draw of tasks, (draws,)."""
        drawn = {}
        for row in self.outcomes:
            if row["condition"] == condition and row["method"] in (WEAK, STRONG, method):
                columns = (np.array(row[name], float) for name in ("usd", "success"))
                drawn[row["method"], row["point"]] = [counts @ column / counts.sum(axis=1) for column in columns]
        points = [value for (name, _), value in drawn.items() if name == method]
        cost, success = (np.stack(axis, axis=1) for axis in zip(*points, strict=True))
        low, high = (tuple(drawn[end, MAIN]) for end in (WEAK, STRONG))
        return Curve.through(cost, success, low, high).apgr()

    def verdicts(self, condition: str, method: str) -> set[str]:
        """Return the verdicts of the dollar comparisons with a baseline: higher, lower, inconclusive."""
        return {
            row["verdict"]
            for row in self.comparisons
            if (row["condition"], row["method_b"]) == (condition, method) and row["metric"] != UNEQUAL_COST
        }


def table(runs: Sequence[Run], condition: str) -> list[str]:
    """Return the lines of a condition."""
    baselines = [name for name in runs[0].methods(condition) if name != OURS and name in ROUTERS]
    counts, shares = _draws(runs, condition)
    ours = np.stack([run.areas(condition, OURS, counts) for run in runs])
    leads = {
        name: ours - np.stack([run.areas(condition, name, counts) for run in runs]) for name in baselines
    }  # (runs, 1 + draws)
    best = min(leads.values(), key=lambda lead: lead[:, 0].mean())
    names = {f"{name}{', the best' if lead is best else ''}": (lead, name) for name, lead in leads.items()}
    of_each = [min(leads.values(), key=lambda lead: lead[at, 0])[at] for at in range(len(runs))]
    seeds = sorted({run.facts["seed"] for run in runs})
    rows = [
        f"{condition}: {len(runs)} runs, training seeds {', '.join(map(str, seeds))}; r2v's APGR "
        f"{float((ours * shares).sum(axis=0)[0]):.3f}",
        "",
        f"| baseline | r2v leads by | {' | '.join(KERNELS)} | least | largest | runs that show r2v above | below |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, (lead, name) in sorted(names.items(), key=lambda pair: pair[1][0][:, 0].mean()):
        shown = [run.verdicts(condition, name) for run in runs]
        counted = " | ".join(
            f"{sum(verdict in row for row in shown)} of {len(runs)}" for verdict in ("higher", "lower")
        )
        rows.append(f"| {label} | {_lead(runs, lead, shares)} | {counted} |")
    rows.append(f"| the best of each run | {_lead(runs, np.stack(of_each), shares)} | | |")
    return [*rows, ""]


def _lead(runs: Sequence[Run], lead: FloatArray, shares: FloatArray) -> str:
    """Return the mean lead with its interval, the mean of each kind of kernels, the least and the largest."""
    mean = (lead * shares).sum(axis=0)
    cells = [f"{mean[0]:+.3f} {bounds(mean[1:])}"]
    for kernels in KERNELS:
        of_kind = [row[0] for run, row in zip(runs, lead, strict=True) if run.facts["kernels"] == kernels]
        cells.append(f"{np.mean(of_kind):+.3f}" if of_kind else "")
    return " | ".join([*cells, f"{lead[:, 0].min():+.3f}", f"{lead[:, 0].max():+.3f}"])


def _draws(runs: Sequence[Run], condition: str) -> tuple[FloatArray, FloatArray]:
    """Return the counts of each task, (1 + draws, tasks), and the share of each run, (runs, 1 + draws): first in the
    estimate, then in every draw of tasks and of training seeds."""
    tasks = len(next(row for row in runs[0].outcomes if row["condition"] == condition)["tasks"])
    by_task = generator_of(tasks).multinomial(tasks, [1 / tasks] * tasks, size=DRAWS)
    counts = np.concatenate([np.ones((1, tasks)), by_task]).astype(float)
    seeds = [run.facts["seed"] for run in runs]
    unique_seeds = sorted(set(seeds))
    by_seed = generator_of(-len(unique_seeds)).multinomial(
        len(unique_seeds), [1 / len(unique_seeds)] * len(unique_seeds), size=DRAWS
    )
    drawn = np.concatenate([np.ones((1, len(unique_seeds))), by_seed])
    weights = np.stack([drawn[:, unique_seeds.index(seed)] / seeds.count(seed) for seed in seeds])
    return counts, weights / weights.sum(axis=0)


def leads(folder: Path = OUTCOMES) -> list[str]:
    """Return the leads of the finished runs. Raises FileNotFoundError if there are none."""
    runs = _stored(folder)
    conditions = dict.fromkeys(row["condition"] for row in runs[0].outcomes)
    return [line for condition in conditions for line in table(runs, condition)][:-1]


def tables(folder: Path = OUTCOMES) -> list[str]:
    """Return the tables of the finished runs, and the origin of each. Raises FileNotFoundError if there are none."""
    lines = ["", "| run | kernels | processor | commit | date | CPU-seconds |", "|---|---|---|---|---|---|"]
    for run in _stored(folder):
        facts = run.facts
        cells = [facts["cpu_capability"], facts["processor"], facts["commit"][:7], facts["date"], facts["cpu_seconds"]]
        lines.append(f"| seed {facts['seed']}, {facts['kernels']} | {' | '.join(map(str, cells))} |")
    return leads(folder) + lines


def _stored(folder: Path) -> list[Run]:
    runs = [Run.read(path.parent) for path in sorted(folder.glob("*/run.json"))]
    if not runs:
        raise FileNotFoundError(f"{folder}: no run (python -m benchmarks.mrp_runs)")
    return runs


def main() -> None:
    """Make the missing runs, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS, help="training seeds (default: 0 to 4)")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS), help="default: both")
    parser.add_argument("--config", type=Path, default=CONFIG, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=OUTCOMES, help="default: %(default)s")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for kernels in arguments.kernels:
            folder = arguments.out / f"seed-{seed}-{kernels}"
            if not (folder / "run.json").exists():
                make(seed, kernels, arguments.config, folder)
                print(f"{folder}: {json.loads((folder / 'run.json').read_text())['cpu_seconds']} CPU-s", flush=True)
    print("\n".join(tables(arguments.out)))


if __name__ == "__main__":
    main()
