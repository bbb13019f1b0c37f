"""Sweeps over `router.*` on the bundled pipeline: what six points make anew, and whether early stopping finds the best.

    python -m r2v run --config configs/mrp.yaml --without evaluate ablations     # once, some 350 CPU-seconds
    python benchmarks/router_sweeps.py

Six budgets: which stages ran, by the logs of the runs, and per point the CPU-seconds of the run beside those of the
stages that it made. Then ASHA over the same six by evaluation tasks, 10 and then 60, which is held to the grid's best:
steps are evaluation tasks, and seconds say nothing, for what the grid has played is found again.
It works in the current project, and leaves the experiments there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from r2v.experiments.asha import replayed
from r2v.experiments.compare import compare
from r2v.experiments.metrics import metric_of
from r2v.experiments.records import RunRecord, experiments, read_record

METRIC = "r2v/noisy/success_rate"
LEVELS = (10, 60)
HEAD = f"mode: training\nstage: evaluate\nbase_config: configs/mrp.yaml\nmetric: {METRIC}\n"
EVALUATION = "{num_tasks: %d, seeds: [1], conditions: [noisy], methods: [%s], budgets: [], gains_tasks: 0}"
SIX = f"""\
name: six_budgets
{HEAD}fixed_overrides:
  evaluation: {EVALUATION % (LEVELS[-1], "slm_only, r2v")}
sweep:
  router.budget: [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
"""
ASHA = f"asha: {{resource: evaluation.num_tasks, levels: {list(LEVELS)}}}\n"


def run(text: str) -> Path:
    """Run a specification through the command line; the folder of the experiment."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.yaml"
        spec.write_text(text)
        subprocess.run([sys.executable, "-m", "r2v", "experiments", "run", "--exp", str(spec)], check=True)
    return list(experiments())[-1]


def stages_of(run: RunRecord) -> tuple[list[str], float]:
    """The stages that a run made anew, and the CPU-seconds that they say they took."""
    told = re.findall(r"^(\w+) +done, ([\d.]+) CPU-s$", (Path(run.run_dir) / "output.log").read_text(), re.M)
    return [job for job, _ in told], sum(float(seconds) for _, seconds in told)


def six_budgets(folder: Path) -> None:
    made = Counter[str]()
    print(f"{'run':<10}{'made':<20}{'stages CPU-s':>14}{'run CPU-s':>12}{'above them':>12}")
    for one in read_record(folder).runs:
        jobs, seconds = stages_of(one)
        made.update(jobs)
        whole = one.cpu_seconds or 0.0
        print(f"{one.run:<10}{' '.join(jobs):<20}{seconds:>14.1f}{whole:>12.1f}{whole - seconds:>12.1f}")
    print(f"made by the six: {dict(made)}")
    subprocess.run([sys.executable, "-m", "r2v", "experiments", "compare", folder.name], check=True)


def early_stopping(whole: Path) -> None:
    stopped = run(SIX.replace("six_budgets", "six_budgets_asha") + ASHA)
    count, wrong = replayed(stopped, 3, "max")
    best = compare(whole, METRIC).settings[0]
    runs = [one for one in read_record(stopped).runs if one.status == "completed"]
    top = max(runs, key=lambda one: (one.rung or 0, metric_of(Path(one.run_dir), METRIC)))
    steps, full = sum(LEVELS[one.rung or 0] for one in runs), len(read_record(whole).runs) * LEVELS[-1]
    reached = metric_of(Path(top.run_dir), METRIC)
    low, high = best.interval or (best.mean, best.mean)
    print(f"grid: {best.label} {best.mean:.4f} [{low:.4f}, {high:.4f}] at {full} tasks")
    print(f"ASHA: {top.values} {reached:.4f} at {steps} tasks, {steps / full:.0%}; inside: {low <= reached <= high}")
    print(f"{count} decisions, {len(wrong)} come out otherwise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--read", type=Path, metavar="DIR", help="six budgets that have run (default: run them)")
    values = parser.parse_args()
    whole = values.read or run(SIX)
    six_budgets(whole)
    early_stopping(whole)


if __name__ == "__main__":
    main()
