"""Sweeps over `router.*` on the bundled pipeline: stages that six points make again, and ASHA against a full grid.

    python -m r2v run --config configs/mrp.yaml --without evaluate ablations     # once, some 350 CPU-seconds
    python benchmarks/router_sweeps.py

Six budgets: the stages that ran, by the logs of the runs, and per point the CPU-seconds of the run beside those of the
stages that it made. Then nine routers, three sets of features by three labels, at the same share of LLM steps, as a
grid of 60 evaluation tasks each and by ASHA with its defaults: eta 3 and three rungs (7, 20 and 60 tasks). Both were
fixed before either was run. Steps are evaluation tasks: those that are played, as a point resumes from its last rung,
and those that would be played if it restarted on every rung. `--only six` or `--only nine` runs one of the two. The
experiments stay in the current project.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from r2v.experiments.compare import compare
from r2v.experiments.metrics import metric_of
from r2v.experiments.records import SPEC_COPY, RunRecord, experiments, read_record
from r2v.experiments.schedule.asha import point_of, replayed
from r2v.experiments.specification.asha_rule import AshaRule, levels_of
from r2v.experiments.specification.expansion import expand
from r2v.experiments.specification.spec import read_spec

METRIC = "r2v/noisy/success_rate"
TASKS = 60
HEAD = f"mode: training\nstage: evaluate\nbase_config: configs/mrp.yaml\nmetric: {METRIC}\n"
EVALUATION = "{num_tasks: %d, seeds: [1], conditions: [noisy], methods: [%s], budgets: [], gains_tasks: 0}"
SIX = f"""\
name: six_budgets
{HEAD}fixed_overrides:
  evaluation: {EVALUATION % (TASKS, "slm_only, r2v")}
sweep:
  router.budget: [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
"""
NINE = f"""\
name: nine_routers
{HEAD}fixed_overrides:
  evaluation: {EVALUATION % (TASKS, "r2v")}
  router.rounds: 0
sweep:
  router.features: [[uncertainty], [uncertainty, progress], [uncertainty, progress, page, tool]]
  router.label: [counterfactual, disagreement, episode]
"""
ETA = 3
ASHA = f"asha: {{resource: evaluation.num_tasks, eta: {ETA}}}\n"


def run(text: str) -> Path:
    """Run a specification through the command line; the folder of the experiment."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.yaml"
        spec.write_text(text)
        subprocess.run([sys.executable, "-m", "r2v", "experiments", "run", "--exp", str(spec)], check=True)
    return list(experiments())[-1]


def stages_of(run: RunRecord) -> tuple[list[str], float]:
    """Return the stages that a run made again, and their logged CPU-seconds."""
    logged = re.findall(
        r"^stage done: stage=(\w+) cpu_s=([\d.]+)$", (Path(run.run_dir) / "output.log").read_text(), re.M
    )
    return [job for job, _ in logged], sum(float(seconds) for _, seconds in logged)


def six_budgets(folder: Path) -> None:
    counts = Counter[str]()
    print(f"{'run':<10}{'made':<20}{'stages CPU-s':>14}{'run CPU-s':>12}{'the rest':>12}")
    for run in read_record(folder).runs:
        jobs, seconds = stages_of(run)
        counts.update(jobs)
        whole = run.cpu_seconds or 0.0
        print(f"{run.run:<10}{' '.join(jobs):<20}{seconds:>14.1f}{whole:>12.1f}{whole - seconds:>12.1f}")
    print(f"stages made by the six runs: {dict(counts)}")
    subprocess.run([sys.executable, "-m", "r2v", "experiments", "compare", folder.name], check=True)


def early_stopping(whole: Path, stopped: Path) -> None:
    settings = compare(whole, METRIC).settings
    print(f"{'grid of nine routers':<75}{METRIC}, 95 % interval over tasks")
    for setting in settings:
        low, high = setting.interval or (setting.mean, setting.mean)
        print(f"{setting.label:<75}{setting.mean:.4f} [{low:.4f}, {high:.4f}]")
    spec = read_spec(stopped / SPEC_COPY)
    levels = levels_of(AshaRule(resource="evaluation.num_tasks", levels=(), eta=ETA), [p.text for p in expand(spec)])
    runs = [run for run in read_record(stopped).runs if run.status == "completed"]
    for rung, level in enumerate(levels):
        rows = {point_of(run): metric_of(Path(run.run_dir), METRIC) for run in runs if run.rung == rung}
        print(f"ASHA, {level} tasks: " + ", ".join(f"{point} {figure:.3f}" for point, figure in rows.items()))
    last: dict[str, int] = {}
    for run in runs:
        last[point_of(run)] = max(last.get(point_of(run), 0), levels[run.rung or 0])
    full, again = len(settings) * TASKS, sum(levels[run.rung or 0] for run in runs)
    played = sum(last.values())
    print(
        f"steps: {played} of {full} tasks played ({played / full:.0%}); {again / full:.0%} with restarts on every rung"
    )
    pick = compare(stopped, METRIC).settings[0]
    best = settings[0]
    low, high = best.interval or (best.mean, best.mean)
    rank = 1 + sum(setting.mean > pick.mean for setting in settings)
    print(f"best of the grid: {best.label} {best.mean:.4f} [{low:.4f}, {high:.4f}]")
    print(f"ASHA's: {pick.label} {pick.mean:.4f}, number {rank} of the grid; inside: {low <= pick.mean <= high}")
    count, wrong = replayed(stopped, ETA, "max")
    print(f"{count} decisions replayed, {len(wrong)} of them differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("six", "nine"), help="one of the two (default: both)")
    values = parser.parse_args()
    if values.only != "nine":
        six_budgets(run(SIX))
    if values.only != "six":
        early_stopping(run(NINE), run(NINE.replace("nine_routers", "nine_routers_asha") + ASHA))


if __name__ == "__main__":
    main()
