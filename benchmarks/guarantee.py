"""Does a Learn-then-Test guarantee hold on tasks that nobody has read?

    python -m benchmarks.guarantee --students 0 1 2 3 4 --first-task 46677

Of each student of `benchmarks/students.py` (noisy desk): the largest of ten thresholds at which calibration tasks show
that at most a share alpha of tasks fails, wrong with probability delta (`r2v.router.thresholds.guarantee`; thresholds
are quantiles of training scores), or why there is none; then r2v's episodes at that threshold on further tasks: what
share failed, with its 95 % interval, what share of the steps the LLM took, and how many USD of an LLM-only episode.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.looks import LEDGER, look_at, open_look
from benchmarks.placing import point_of, walks
from benchmarks.rivals import rivals
from benchmarks.routing_tree import RoutingTree, own_score
from benchmarks.students import DESK, fresh_specs, student
from r2v.config import Config, load
from r2v.config.methods import OURS
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.statistics import wilson
from r2v.router.thresholds import guarantee, guarded_thresholds
from r2v.router.training import fit_routers

ALPHAS = (0.1, 0.2, 0.3, 0.4)
DELTA = 0.1


def lines_of(config: Config, number: int, num_tasks: int, first_task: int) -> Sequence[str]:
    """What is printed of a student: a line for each alpha."""
    made = student(config)
    runner, benchmark = made.runner, made.runner.world.benchmark
    ours = own_score(rivals(config, made.rows, {task.task_id: task.goal for task in benchmark.tasks()})[OURS])
    model, _ = fit_routers(made.rows, config.router, config.seed)
    taus = guarded_thresholds(model.predict(row.features) for row in made.rows if row.split == "train")
    trees = [RoutingTree(runner, spec) for spec in EvaluateSettings.of(config).calibration_specs(benchmark)]
    played = dict(zip(taus, walks(trees, [(ours, tau) for tau in taus]), strict=True))
    losses = {tau: [float(not one.success) for one in episodes] for tau, episodes in played.items()}
    promised = {alpha: guarantee(losses, alpha, DELTA) for alpha in ALPHAS}
    chosen = sorted({one.tau for one in promised.values() if one.tau is not None})
    fresh = [RoutingTree(runner, spec) for spec in fresh_specs(config, runner, "noisy", num_tasks, first_task)]
    llm, *rest = walks(fresh, [(ours, tau) for tau in (0.0, *chosen)])
    found = dict(zip(chosen, rest, strict=True))
    lines = []
    for alpha, one in promised.items():
        if one.tau is None:
            lines.append(f"| {number} | {alpha:g} | {one.verdict} | | | |")
            continue
        episodes = found[one.tau]
        failures, point = sum(not episode.success for episode in episodes), point_of(episodes)
        low, high = wilson(failures, num_tasks)
        lines.append(
            f"| {number} | {alpha:g} | {one.tau:.4f}: {fmean(losses[one.tau]):.3f} of {one.n} | "
            f"{failures / num_tasks:.3f} [{low:.3f}, {high:.3f}] | {point.llm_call_rate:.2f} | "
            f"{point.cost / point_of(llm).cost:.2f} |"
        )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds")
    parser.add_argument(
        "--first-task", type=int, required=True, help="of desk; the ledger refuses those that were read"
    )
    parser.add_argument("--num-tasks", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--again", default="", metavar="WHY", help="read tasks that the ledger says were read")
    asked = parser.parse_args()
    open_look(LEDGER, look_at("desk", asked.first_task, asked.num_tasks, "benchmarks/guarantee.py", asked.again))
    print("| student | alpha | threshold: failed in calibration | failed here | LLM steps | USD, of llm_only's |")
    print("|" + "---|" * 6)
    for number in asked.students:
        config = load(DESK, [f"seed={number}", f"prefix=student{number}"])
        print("\n".join(lines_of(config, number, asked.num_tasks, asked.first_task)), flush=True)


if __name__ == "__main__":
    main()
