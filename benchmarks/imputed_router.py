"""An imputed router against one with executed labels, both played on the bundled benchmark.

    make mrp                                                     # the policy, the verifier and the router
    python benchmarks/imputed_router.py                          # then this, in the same folder
    python benchmarks/imputed_router.py --conditions noisy --num-tasks 20

The teacher is recorded on as many tasks as the executed router learnt from, under the same hazards, and on none that
the policy was cloned from. The imputed router is fitted on these records alone: their states, each labelled by a
disagreement of the policy. Every row is executed on the evaluation tasks. `executed` and `imputed` read the same
features (an imputed router has no verifier); r2v reads the verifier too. A threshold is placed by playing calibration
tasks until the LLM has the budget's share of the steps, or, as without a world, by that share of recorded steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from r2v.config import Config, TaskSelection, load
from r2v.console import text_table
from r2v.data.episode import Episode
from r2v.envs.base import tools_of
from r2v.evaluation.acting.calibration import ExecutedPlays
from r2v.evaluation.acting.methods import MethodRunner
from r2v.evaluation.calibration import place_thresholds, played_at
from r2v.evaluation.measures.statistics import cluster_bootstrap_ci
from r2v.evaluation.settings import EvaluateSettings
from r2v.pipeline.inputs import published
from r2v.rollout.actors import GreedyActor
from r2v.rollout.session import EpisodeSpec, episode_specs, play_many
from r2v.rollout.stage_rollouts.teacher_states import agreement_cell
from r2v.rollout.work_queue import measured
from r2v.router.labels import FeatureRow, labelled, read_rows
from r2v.router.models import RouterModel
from r2v.router.thresholds import match_rate
from r2v.router.training import fit, report
from r2v.stages.impute_router import placed_on_records
from r2v.stages.train_policy import TASKS
from r2v.storage.artifact import Work

PAGE = ["uncertainty", "progress", "page", "tool"]
FIXED = ("random_router", "entropy_router")


def runner_of(config: Config, artifacts: dict[str, Path], folder: Path) -> MethodRunner:
    """Return the runner of a finished pipeline's models; it keeps its plays in `folder`."""
    work = Work(folder=folder, fingerprint="", inputs={}, root=folder)
    settings = EvaluateSettings.of(config)
    return MethodRunner.of(
        settings,
        work,
        policy=artifacts["preference"] / "final",
        verifier=artifacts["verifier"] / "final",
        router=artifacts["router"],
    )


def with_router(runner: MethodRunner, name: str, model: RouterModel) -> MethodRunner:
    """Return the runner with another router in place of r2v's, whose plays have their own identity."""
    routers = {**runner.identity.routers, "r2v": name}
    identity = dataclasses.replace(runner.identity, routers=routers)
    return dataclasses.replace(runner, identity=identity, routers={**runner.routers, "r2v": model})


def recorded(config: Config, runner: MethodRunner, cloned: set[str]) -> tuple[dict[str, Episode], dict[str, str]]:
    """Play the teacher on tasks that were not cloned; return its successes by id, and their tasks' splits."""
    router, tasks = config.router, TaskSelection.training(config)
    specs = []
    for split, count in (("train", router.num_tasks), ("calibration", router.num_calibration_tasks)):
        every = episode_specs(runner.world.benchmark, split, router.seeds, tasks, method="teacher")
        fresh = [spec for spec in every if spec.task.task_id not in cloned]
        kept_tasks = list(dict.fromkeys(spec.task.task_id for spec in fresh))[:count]
        specs += [spec for spec in fresh if spec.task.task_id in kept_tasks]
    played = play_many(runner.waves, runner.world, specs, GreedyActor(runner.llm.model, "teacher"))
    successes = {episode.episode_id: episode for episode in played if episode.success}
    return successes, {episode.metadata.task_id: str(episode.metadata.split) for episode in successes.values()}


def imputed_rows(config: Config, runner: MethodRunner, cloned: set[str]) -> list[FeatureRow]:
    """Return the feature rows of the teacher's states."""
    episodes, splits = recorded(config, runner, cloned)
    longest, tools = config.inference.max_steps, tools_of(runner.world.benchmark)
    cell = agreement_cell(episodes, splits, runner.slm, runner.extractor, tools, max_steps=longest)
    return [row for rows in measured(cell, runner.player) for row in rows]


def placed_by_playing(config: Config, runner: MethodRunner, scores: Sequence[float]) -> float:
    """Return r2v's threshold at the budget, placed as by the router stage."""
    specs = EvaluateSettings.of(config).calibration_specs(runner.world.benchmark)
    plays = ExecutedPlays(runner, specs)
    return match_rate(lambda tau: played_at(plays, "r2v", tau), scores, config.router.budget).tau


def row_of(
    name: str, condition: str, runner: MethodRunner, method: str, specs: list[EpisodeSpec], tau: float | None
) -> tuple[str, ...]:
    """Return one executed row of the table."""
    cell = runner.cell(method, specs, tau)
    runner.player.play([cell])
    episodes = [episode for (episode,) in runner.player.records(cell)]
    tasks = list(dict.fromkeys(episode.metadata.task_id for episode in episodes))
    success = np.array([[e.success for e in episodes if e.metadata.task_id == task] for task in tasks], float)
    low, high = cluster_bootstrap_ci(success, resamples=10_000)
    steps, llm_steps = sum(len(e.steps) for e in episodes), sum(e.num_llm_fallbacks for e in episodes)
    share = 1.0 if method == "llm_only" else llm_steps / steps
    cost = float(np.mean([episode.total_cost for episode in episodes]))
    shown = "" if tau is None else f"{tau:.3f}"
    return (name, condition, f"{success.mean():.3f}", f"[{low:.3f}, {high:.3f}]", f"{share:.3f}", f"{cost:.4f}", shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/mrp.yaml", help="of the finished pipeline (default: the MRP's)")
    parser.add_argument("--conditions", nargs="+", default=["clean", "noisy", "shift"], help="default: all three")
    parser.add_argument("--num-tasks", type=int, help="evaluation tasks (default: as configured)")
    values = parser.parse_args()
    config = load(values.config)
    evaluation = dataclasses.replace(
        config.evaluation,
        conditions=values.conditions,
        num_tasks=values.num_tasks or config.evaluation.num_tasks,
        methods=["r2v", "slm_only", "llm_only", "disagreement_router", *FIXED],
    )
    config = dataclasses.replace(config, evaluation=evaluation)
    needed = ("bc", "preference", "verifier", "router", "router_features")
    artifacts = {name: published(config, name).folder for name in needed}
    cloned = set(json.loads((artifacts["bc"] / TASKS).read_text()))
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        runner = runner_of(config, artifacts, Path(folder))
        played = read_rows(artifacts["router_features"] / "router_features.jsonl")
        plain = dataclasses.replace(config.router, features=PAGE)
        learnt = {"executed": fit(labelled(played, "counterfactual"), plain, config.seed)}
        imputed_labels = labelled(imputed_rows(config, runner, cloned), "imputed")
        learnt["imputed"] = fit(imputed_labels, dataclasses.replace(plain, label="imputed"), config.seed)
        executed = labelled(played, "counterfactual")
        for name, model in learnt.items():
            own_labels = report(model, executed if name == "executed" else imputed_labels)["calibration"]
            gains = report(model, executed)["calibration"]
            print(f"{name}: AUROC of its own labels {own_labels['auroc']}, of executed gains {gains['auroc']}")
        routed = {name: with_router(runner, name, model) for name, model in learnt.items()}
        own = [row for row in played if row.split == "calibration"]
        thresholds = {
            name: placed_by_playing(config, routed[name], [model.predict(row.features) for row in own])
            for name, model in learnt.items()
        }
        held = [
            (learnt["imputed"].predict(r.features), not r.disagrees) for r in imputed_labels if r.split == "calibration"
        ]
        on_records = placed_on_records(held, config.router.budget)
        print("imputed router, threshold placed on recorded steps:", on_records)
        settings = EvaluateSettings.of(config)
        calibration = settings.calibration_specs(runner.world.benchmark)
        methods = ("r2v", "disagreement_router", *FIXED)
        chosen = place_thresholds(
            ExecutedPlays(runner, calibration), {(m, "main"): config.router.budget for m in methods}
        )
        for condition in values.conditions:
            specs = settings.specs(runner.world.benchmark, condition)
            rows.append(row_of("slm_only", condition, runner, "slm_only", specs, None))
            for method in methods:
                rows.append(row_of(method, condition, runner, method, specs, chosen[method, "main"].tau))
            for name in learnt:
                rows.append(row_of(f"{name} labels", condition, routed[name], "r2v", specs, thresholds[name]))
            tau = float(on_records["tau"] or 0.0)
            rows.append(row_of("imputed, by records", condition, routed["imputed"], "r2v", specs, tau))
            rows.append(row_of("llm_only", condition, runner, "llm_only", specs, None))
    head = ("router", "condition", "success", "95 % interval", "LLM steps", "USD/episode", "threshold")
    print(text_table([head, *rows], right=(2, 4, 5, 6)))


if __name__ == "__main__":
    main()
