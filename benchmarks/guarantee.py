"""Learn-then-Test guarantee on unread tasks: the promised share of failures against the executed one.

    python -m benchmarks.guarantee --students 0 1 2 3 4 --first-task 46677

Of each student of `benchmarks/students.py` (noisy desk): the largest of ten thresholds at which calibration tasks show
that at most a share alpha of tasks fails, wrong with probability delta (`r2v.router.thresholds.guarantee`; thresholds
are quantiles of training scores), or the reason for having none; then r2v's episodes at that threshold on further
tasks: the share that failed, with its 95 % interval, the LLM's share of steps, and the cost over an LLM-only episode's.
Kept in benchmarks/outcomes/guarantee.jsonl; `python -m benchmarks.tables` prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.looks import LEDGER, look_at, open_look
from benchmarks.placing import point_of, walks
from benchmarks.rivals import rivals
from benchmarks.routing_tree import RoutingTree, own_score
from benchmarks.students import DESK, fresh_specs, student
from r2v.config import Config, load
from r2v.config.methods import OURS
from r2v.evaluation.measures.statistics import wilson
from r2v.evaluation.settings import EvaluateSettings
from r2v.router.thresholds import guarantee, guarded_thresholds
from r2v.router.training import fit_routers

OUTCOMES = Path("benchmarks/outcomes/guarantee.jsonl")
ALPHAS = (0.1, 0.2, 0.3, 0.4)
DELTA = 0.1


@dataclass(frozen=True, kw_only=True)
class Held:
    """A student's guarantee and its outcome on new tasks; without a threshold there is no outcome."""

    student: int
    alpha: float
    verdict: str
    tau: float | None = None
    failed_in_calibration: float = 0.0
    calibration_tasks: int = 0
    failed: int = 0
    tasks: int = 0
    llm_call_rate: float = 0.0
    usd_of_llm_only: float = 0.0

    def row(self) -> str:
        """Return its row of the table."""
        if self.tau is None:
            return f"| {self.student} | {self.alpha:g} | {self.verdict} | | | |"
        low, high = wilson(self.failed, self.tasks)
        return (
            f"| {self.student} | {self.alpha:g} | "
            f"{self.tau:.4f}: {self.failed_in_calibration:.3f} of {self.calibration_tasks} | "
            f"{self.failed / self.tasks:.3f} [{low:.3f}, {high:.3f}] | {self.llm_call_rate:.2f} | "
            f"{self.usd_of_llm_only:.2f} |"
        )


def held(config: Config, number: int, num_tasks: int, first_task: int) -> list[Held]:
    """Play each promise to a student and return the outcomes."""
    trained = student(config)
    runner, benchmark = trained.runner, trained.runner.world.benchmark
    ours = own_score(rivals(config, trained.rows, {task.task_id: task.goal for task in benchmark.tasks()})[OURS])
    model, _ = fit_routers(trained.rows, config.router, config.seed)
    taus = guarded_thresholds(model.predict(row.features) for row in trained.rows if row.split == "train")
    trees = [RoutingTree(runner, spec) for spec in EvaluateSettings.of(config).calibration_specs(benchmark)]
    played = dict(zip(taus, walks(trees, [(ours, tau) for tau in taus]), strict=True))
    losses = {tau: [float(not episode.success) for episode in episodes] for tau, episodes in played.items()}
    promised = {alpha: guarantee(losses, alpha, DELTA) for alpha in ALPHAS}
    chosen = sorted({promise.tau for promise in promised.values() if promise.tau is not None})
    fresh = [RoutingTree(runner, spec) for spec in fresh_specs(config, runner, "noisy", num_tasks, first_task)]
    llm, *rest = walks(fresh, [(ours, tau) for tau in (0.0, *chosen)])
    by_tau = dict(zip(chosen, rest, strict=True))
    outcomes = []
    for alpha, promise in promised.items():
        outcome = Held(student=number, alpha=alpha, verdict=promise.verdict)
        if promise.tau is not None:
            episodes = by_tau[promise.tau]
            outcome = replace(
                outcome,
                tau=promise.tau,
                failed_in_calibration=fmean(losses[promise.tau]),
                calibration_tasks=promise.n,
                failed=sum(not episode.success for episode in episodes),
                tasks=num_tasks,
                llm_call_rate=point_of(episodes).llm_call_rate,
                usd_of_llm_only=point_of(episodes).cost / point_of(llm).cost,
            )
        outcomes.append(outcome)
    return outcomes


def stored(path: Path = OUTCOMES) -> list[Held]:
    """Load the stored guarantees. Raises FileNotFoundError if there are none."""
    return [Held(**json.loads(line)) for line in path.read_text().splitlines()]


def table(path: Path = OUTCOMES) -> list[str]:
    """Return the table of all played students. Raises FileNotFoundError if there are none."""
    heads = "student | alpha | threshold: failed in calibration | failed here | LLM steps | USD, of llm_only's"
    return [f"| {heads} |", "|" + "---|" * 6, *(outcome.row() for outcome in stored(path))]


def main() -> None:
    """Play the missing students, store the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds")
    parser.add_argument(
        "--first-task", type=int, required=True, help="first desk task; the ledger refuses tasks that were read"
    )
    parser.add_argument("--num-tasks", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--again", default="", metavar="WHY", help="read tasks that the ledger says were read")
    arguments = parser.parse_args()
    open_look(
        LEDGER, look_at("desk", arguments.first_task, arguments.num_tasks, "benchmarks/guarantee.py", arguments.again)
    )
    OUTCOMES.parent.mkdir(parents=True, exist_ok=True)
    played = {outcome.student for outcome in stored()} if OUTCOMES.exists() else set()
    for number in sorted(set(arguments.students) - played):
        config = load(DESK, [f"seed={number}", f"prefix=student{number}"])
        lines = [
            json.dumps(asdict(outcome)) for outcome in held(config, number, arguments.num_tasks, arguments.first_task)
        ]
        with OUTCOMES.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
    print("\n".join(table()))


if __name__ == "__main__":
    main()
