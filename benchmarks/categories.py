"""Success lost to each category of perturbation alone, by the small policy, by routers and by the LLM.

    python -m benchmarks.categories --students 0 1 2 --first-task 46877

Students of `benchmarks/students.py`, at the thresholds of their noisy pieces' main point, play the same desk tasks once
clean and once under each of the twelve categories alone, at one probability and the default severity; some categories
occur in no training. Printed: success of each method as a mean over students and tasks, its loss from clean with a 95 %
bootstrap over students and tasks, and how much less r2v loses than the small policy and than each router. Kept in
benchmarks/outcomes/categories; `python -m benchmarks.tables` prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.looks import LEDGER, look_at, open_look
from benchmarks.placing import MAIN_POINT, POINTS, walks
from benchmarks.rivals import rivals
from benchmarks.robustness_table import drawn
from benchmarks.routing_tree import RoutingTree, own_score, scores_of
from benchmarks.student_pieces import Piece, bounds
from benchmarks.students import DESK, OUTCOMES, fresh_specs, student
from r2v.config import CategoryConfig, Config, PerturbationsConfig, load
from r2v.config.methods import OURS
from r2v.evaluation.measures.statistics import FloatArray
from r2v.storage.files import write_json

METHODS = ("slm_only", "entropy", "disagreement", OURS, "llm_only")
PROBABILITY = 0.2
KEPT = Path("benchmarks/outcomes/categories")
CLEAN = "clean"


def conditions() -> dict[str, PerturbationsConfig]:
    """Return name -> perturbations: none, and each category alone."""
    names = PerturbationsConfig.categories()
    nothing: dict[str, Any] = {name: CategoryConfig() for name in names}
    alone = {name: {**nothing, name: CategoryConfig(prob=PROBABILITY)} for name in names}
    return {name: PerturbationsConfig(held_out=[], **some) for name, some in {CLEAN: nothing, **alone}.items()}


def solved(config: Config, number: int, num_tasks: int, first_task: int) -> dict[str, list[list[int]]]:
    """Play a student under each condition; return condition -> 1 for success, by method and task."""
    trained = student(config)
    everybody = rivals(
        config, trained.rows, {task.task_id: task.goal for task in trained.runner.world.benchmark.tasks()}
    )
    placed = Piece.read(OUTCOMES / f"student-{number}-noisy.jsonl.zst").head["thresholds"]
    scores, alone = scores_of(everybody.values()), own_score(everybody[OURS])
    plans = {"slm_only": (alone, 1.0), "llm_only": (alone, 0.0)}
    for name in METHODS:
        if name in placed:
            placement = placed[name][POINTS.index(MAIN_POINT)]
            plans[name] = scores[placement["score"]], placement["tau"]
    successes = {}
    for name, perturbations in conditions().items():
        runner = replace(trained.runner, world=replace(trained.runner.world, perturbations=perturbations))
        trees = [RoutingTree(runner, spec) for spec in fresh_specs(config, runner, "noisy", num_tasks, first_task)]
        played = walks(trees, [plans[method] for method in METHODS])
        successes[name] = [[int(episode.success) for episode in episodes] for episodes in played]
        print(f"student {number}, {name}: {[round(fmean(row), 3) for row in successes[name]]}", flush=True)
    return successes


def stored(folder: Path = KEPT) -> list[dict[str, FloatArray]]:
    """Load the results of `solved` for every played student. Raises FileNotFoundError if there are none."""
    paths = sorted(folder.glob("student-*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no student")
    return [{name: np.array(rows, float) for name, rows in json.loads(path.read_text()).items()} for path in paths]


def table(students: Sequence[dict[str, FloatArray]]) -> list[str]:
    """Return a row for each category."""
    # Each array has the shape (methods, students, tasks).
    by_name = {name: np.stack([outcomes[name] for outcomes in students], axis=1) for name in students[0]}
    clean, ours = by_name[CLEAN], METHODS.index(OURS)
    others = [at for at, name in enumerate(METHODS) if name not in (OURS, "llm_only")]
    heads = [*METHODS, "r2v loses", *(f"than {METHODS[at]}, less by" for at in others)]
    rows = [f"| alone | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for name, values in by_name.items():
        lost = clean - values
        differences = [] if name == CLEAN else [lost[ours], *(lost[at] - lost[ours] for at in others)]
        cells = [f"{figures.mean():.3f}" for figures in values]
        cells += [f"{draws[0]:+.3f} {bounds(draws[1:])}" for draws in map(drawn, differences)]
        cells += [""] * (len(heads) - len(cells))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Play, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, nargs="+", default=[0, 1, 2], help="seeds that have a noisy piece")
    parser.add_argument(
        "--first-task", type=int, required=True, help="first desk task; the ledger refuses tasks that were read"
    )
    parser.add_argument("--num-tasks", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--again", default="", metavar="WHY", help="read tasks that the ledger says were read")
    arguments = parser.parse_args()
    open_look(
        LEDGER, look_at("desk", arguments.first_task, arguments.num_tasks, "benchmarks/categories.py", arguments.again)
    )
    for number in arguments.students:
        path = KEPT / f"student-{number}.json"
        if not path.exists():
            config = load(DESK, [f"seed={number}", f"prefix=student{number}"])
            write_json(path, solved(config, number, arguments.num_tasks, arguments.first_task))
    print("\n".join(table(stored())))


if __name__ == "__main__":
    main()
