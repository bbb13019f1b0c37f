"""Several students: r2v beside every baseline at equal dollars on unread tasks, one piece per student and condition.

    python -m benchmarks.students --students 0 1 2 3 4        # finished pieces are not made again
    python -m benchmarks.students_table                       # the tables of all finished pieces

A student is the pipeline's seed: of cloning (data order and initialisation), verifier, preferences and router. It
learns from the same teacher's episodes, its router from its own rounds. All are placed on calibration tasks: r2v at
shares of LLM steps, every baseline where it costs what r2v costs there, in USD as billed. Then all of them play desk
tasks with numbers above those of any configuration, from an offset fixed by the hash of the commit that froze the
method (`FROZEN`): these tasks are unread, and a second look is refused (`benchmarks/looks.py`). Episodes are walks over
trees of executed steps (`benchmarks/routing_tree.py`). Under another world's `--config` the tasks are those of its
evaluation split, from `--first-task` on.

A piece is benchmarks/outcomes/training_seeds/student-<n>-<condition>.jsonl.zst: the commit, the seed, and for every
method and operating point the outcome, bill, calls and perturbations of each task's episode, with a flag for an obeyed
injected instruction. `--groups` plays r2v without each group of its features too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import zstandard

from benchmarks.case_rows import case_index, rows_with_cases
from benchmarks.looks import LEDGER, look_at, open_look
from benchmarks.placing import POINTS, placements, walks
from benchmarks.rivals import CASE_SUPPORT, WITH_CASES, parts, rivals, without_groups
from benchmarks.routing_tree import Method, RoutingTree, Walked, cheapest_rescues, own_score, scores_of
from benchmarks.swe_router import SWE_ROUTER, llm_outcomes, swe_router
from benchmarks.switchyard_peer import switchyard
from r2v.config import Config, PerturbationsConfig, TaskSelection, load
from r2v.config.methods import OURS
from r2v.data.split import assign
from r2v.envs.base import Task, more_tasks
from r2v.envs.desk import Desk
from r2v.errors import UsageError, nearest
from r2v.evaluation.acting.methods import MethodRunner
from r2v.evaluation.settings import EvaluateSettings
from r2v.pipeline.graph import upstream
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.run import run_here
from r2v.rollout.session import EpisodeSpec
from r2v.router.labels import FeatureRow, read_rows
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import git_commit

OUTCOMES = Path("benchmarks/outcomes/training_seeds")
DESK = Path("configs/desk-full.yaml")
FROZEN = "4b055612f83bb9a7cb2c585811d3b99e2ede6d67"
"""The commit that froze the method: no task of the final table was made before."""
ORACLE_TASKS, ORACLE_CALLS = 30, 3
HAZARDS = tuple(field.name for field in fields(PerturbationsConfig) if field.type == "CategoryConfig")
"""Categories of perturbation."""
CHUNK = 64
"""Trees in memory at once."""


FIRST_TASK = 2_000 + int(FROZEN[:8], 16) % 50_000
"""The first of the tasks that all pieces play."""


def fresh_specs(config: Config, runner: MethodRunner, condition: str, count: int, offset: int) -> list[EpisodeSpec]:
    """Return tasks that no stage, test or table has read, with one evaluation seed, under a condition."""
    benchmark, selection = runner.world.benchmark, TaskSelection.evaluation(config, condition)
    if isinstance(benchmark, Desk):
        tasks: Sequence[Task] = Desk(num_tasks=offset + count, num_heldout=0).tasks()[offset:]
    else:
        split = assign(benchmark.tasks(), by=config.data.split_by, seed=config.data.split_seed)
        held = [task for task in benchmark.tasks() if split[task.task_id] == "evaluation"]
        if len(held) < offset + count:
            raise UsageError(
                f"--num-tasks {count} from {offset} on: the evaluation split has {len(held)}; {more_tasks(benchmark)}"
            )
        tasks = held[offset : offset + count]
    return [
        EpisodeSpec(
            task=task,
            seed=config.evaluation.seeds[0],
            condition=selection.condition,  # type: ignore[arg-type]
            perturbation_seed=selection.perturbation_seeds[0],
        )
        for task in tasks
    ]


@dataclass(frozen=True, kw_only=True)
class Student:
    """The published policy, its folder, its router's rows (each names its policy), and CPU-seconds."""

    runner: MethodRunner
    folder: Path
    rows: list[FeatureRow]
    name: str
    took: dict[str, float]


def student(config: Config) -> Student:
    """Return the student, made first if it is missing."""
    began = time.process_time()
    folder = Path("outputs/students") / config.prefix.removeprefix("student")
    folder.mkdir(parents=True, exist_ok=True)
    needed = upstream(["router_features"])
    run_here(config, without=[row.name for row in JOBS if row.name not in needed])
    artifacts = {job: published(config, job).folder for job in ("preference", "verifier", "router_features")}
    runner = MethodRunner.of(
        EvaluateSettings.of(config),
        Work(folder=folder, fingerprint="", inputs={}, root=folder),
        policy=artifacts["preference"] / "final",
        verifier=artifacts["verifier"] / "final",
        num_samples=config.inference.num_candidates,
    )
    took = {"training": round(time.process_time() - began, 1)}
    rows = artifacts["router_features"]
    stored_rows = read_rows(rows / "router_features.jsonl")
    return Student(runner=runner, folder=folder, rows=stored_rows, name=rows.name, took=took)


def line_of(condition: str, method: str, point: str, tau: float | None, played: Sequence[Walked]) -> dict[str, Any]:
    """Return the stored line of a cell: in the order of the tasks, outcomes, micro-USD, LLM steps, steps, hashes of the
    actions, categories that hit (bits in the order of `HAZARDS`), and flags for obeyed injected instructions."""
    return {
        "condition": condition,
        "method": method,
        "point": point,
        "tau": tau,
        "success": "".join(str(int(episode.success)) for episode in played),
        "micro_usd": [round(episode.cost * 1e6) for episode in played],
        "calls": [sum(episode.asked) for episode in played],
        "steps": [len(episode.asked) for episode in played],
        "actions": [episode.digest for episode in played],
        "hit": [
            sum(1 << at for at, name in enumerate(HAZARDS) if name in episode.hazards.categories) for episode in played
        ],
        "obeyed": "".join(str(int(episode.hazards.obeyed)) for episode in played),
    }


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a piece: number of tasks and the first, baselines (all if none is named), and the multi-step oracle's
    number of tasks and limit of LLM steps."""

    num_tasks: int
    first_task: int
    rivals: Sequence[str] = ()
    groups: bool = False
    oracle_tasks: int = ORACLE_TASKS
    oracle_calls: int = ORACLE_CALLS

    def plays(self, name: str) -> bool:
        """True if this baseline plays."""
        return not self.rivals or name in (OURS, *self.rivals)

    def named(self, everybody: dict[str, Method]) -> dict[str, Method]:
        """Return r2v and the requested baselines. Raises UsageError for an unknown one."""
        for name in self.rivals:
            if name not in everybody:
                raise UsageError(f"--rivals {name}: no such rival; {nearest(name, everybody)}")
        return {name: method for name, method in everybody.items() if self.plays(name)}


def contenders(config: Config, trained: Student, size: Size) -> dict[str, Method]:
    """Return r2v and all baselines by name."""
    runner, rows = trained.runner, trained.rows
    if size.plays(CASE_SUPPORT) or size.plays(WITH_CASES):
        runner.extractor = replace(runner.extractor, cases=case_index(config))
        rows = rows_with_cases(runner, config, rows, trained.folder / f"rows_with_cases-{trained.name}.jsonl")
    goals = {task.task_id: task.goal for task in runner.world.benchmark.tasks()}
    methods = rivals(config, rows, goals)
    methods |= parts(config, rows, methods[OURS]) | switchyard(runner.world.benchmark.name)
    if size.plays(SWE_ROUTER):
        outcomes = llm_outcomes(runner, config, rows, trained.folder / f"llm_outcomes-{trained.name}.json")
        methods[SWE_ROUTER] = swe_router(config, rows, outcomes)
    return size.named(methods) | (without_groups(config, rows) if size.groups else {})


def play(config: Config, trained: Student, number: int, condition: str, size: Size, path: Path) -> None:
    """Place all methods, play one condition, and write the piece."""
    runner, took = trained.runner, trained.took
    began = time.process_time()
    methods = contenders(config, trained, size)
    calibration = EvaluateSettings.of(config).calibration_specs(runner.world.benchmark)
    # another commit may have other baselines or another search
    store = trained.folder / f"placements-{trained.name}-{git_commit()}.json"
    chosen = placements([RoutingTree(runner, spec) for spec in calibration], methods, store)
    took["placing"] = round(time.process_time() - began, 1)
    print(f"student {number}: placed, {took}", flush=True)
    began = time.process_time()
    scores, alone = scores_of(methods.values()), own_score(methods[OURS])
    keys = [("slm_only", "", 1.0), ("llm_only", "", 0.0)]
    plans = [(alone, tau) for _, _, tau in keys]
    for name, placed_at in chosen.items():
        for point, placement in zip(POINTS, placed_at, strict=True):
            keys.append((name, point, placement["tau"]))
            plans.append((scores[placement["score"]], placement["tau"]))
    cells: list[list[Walked]] = [[] for _ in keys]
    rescues: list[list[float | None]] = []
    specs = fresh_specs(config, runner, condition, size.num_tasks, size.first_task)
    for at in range(0, len(specs), CHUNK):
        trees = [RoutingTree(runner, spec) for spec in specs[at : at + CHUNK]]
        for cell, played in zip(cells, walks(trees, plans), strict=True):
            cell += played
        if for_oracle := trees[: max(0, size.oracle_tasks - at)]:
            rescues += runner.waves.run(partial(cheapest_rescues, tree, size.oracle_calls) for tree in for_oracle)
    took["playing"] = round(time.process_time() - began, 1)
    head = {
        "student": number,
        "commit": git_commit(),
        "frozen": FROZEN,
        "world": runner.world.benchmark.name,
        "cpu_seconds": took,
        "hazards": HAZARDS,
        "thresholds": chosen,
    }
    lines = [line_of(condition, *key, played) for key, played in zip(keys, cells, strict=True)]
    micro = [[None if usd is None else round(usd * 1e6) for usd in rescue] for rescue in rescues]
    lines.append({"condition": condition, "method": "oracle", "micro_usd_by_calls": micro})
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [head, *lines])
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))
    print(f"{path}: {took} CPU-s, {path.stat().st_size} bytes", flush=True)


def main() -> None:
    """Make the pieces that are not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DESK, help="default: %(default)s")
    parser.add_argument("--students", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds")
    parser.add_argument("--conditions", nargs="+", default=["noisy", "shift", "clean"])
    parser.add_argument(
        "--num-tasks", type=int, default=200, help="fresh tasks of each condition (default: %(default)s)"
    )
    parser.add_argument(
        "--first-task", type=int, help=f"default: {FIRST_TASK} of desk, the first of another world's evaluation split"
    )
    parser.add_argument("--rivals", nargs="+", default=[], help="baselines to play (default: all)")
    parser.add_argument("--groups", action="store_true", help="r2v without each group of its features, too")
    parser.add_argument("--oracle-tasks", type=int, default=ORACLE_TASKS, help="default: %(default)s")
    parser.add_argument("--oracle-calls", type=int, default=ORACLE_CALLS, help="LLM steps (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUTCOMES, help="folder of the pieces (default: %(default)s)")
    parser.add_argument("--again", default="", metavar="WHY", help="read tasks that the ledger says were read")
    arguments = parser.parse_args()
    world = load(arguments.config).env.benchmark
    first = arguments.first_task
    if first is None:
        first = FIRST_TASK if world == Desk.name else 0
    size = Size(
        num_tasks=arguments.num_tasks,
        first_task=first,
        rivals=arguments.rivals,
        groups=arguments.groups,
        oracle_tasks=arguments.oracle_tasks,
        oracle_calls=arguments.oracle_calls,
    )
    open_look(LEDGER, look_at(world, first, arguments.num_tasks, str(arguments.out), arguments.again))
    for condition in arguments.conditions:
        for number in arguments.students:
            path = arguments.out / f"student-{number}-{condition}.jsonl.zst"
            if not path.exists():
                name = "student" if arguments.config == DESK else arguments.config.stem
                config = load(arguments.config, [f"seed={number}", f"prefix={name}{number}"])
                play(config, student(config), number, condition, size, path)


if __name__ == "__main__":
    main()
