"""The router against its baselines at equal dollars, on training-split tasks that no stage has read.

    make mrp                                        # the policy and the router's rows
    python benchmarks/unread_tasks.py               # then this, in the same folder
    python benchmarks/unread_tasks.py --num-tasks 40 --budgets 0.2

The tasks are the last ones of the training split: neither cloned, nor labelled, nor rolled out, nor in any table; the
evaluation split is not read. Routers are fitted on the published rows. r2v's thresholds are placed at shares of LLM
steps, every baseline's where it costs as much as r2v, in USD as billed, all by playing calibration tasks. Printed:
success and cost at each point, and APGR over realised cost with 95 % intervals over tasks, paired.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from r2v.config import Config, TaskSelection, load
from r2v.config.methods import OURS, STRONG, WEAK
from r2v.console import text_table
from r2v.data.episode import Episode
from r2v.evaluation.acting.calibration import ExecutedPlays
from r2v.evaluation.acting.methods import MethodRunner
from r2v.evaluation.calibration import place_thresholds
from r2v.evaluation.measures.frontier import Curve
from r2v.evaluation.measures.statistics import FloatArray, bootstrap_draws, percentile_interval
from r2v.evaluation.settings import EvaluateSettings
from r2v.pipeline.inputs import published
from r2v.rollout.session import EpisodeSpec, episode_specs
from r2v.router.labels import FeatureRow, LabelKind, labelled, read_rows
from r2v.router.training import fit
from r2v.storage.artifact import Work

DRAWS = 2000


def runner_of(config: Config, folder: Path) -> MethodRunner:
    """Return the runner of a finished pipeline's models; it keeps its plays in `folder`."""
    work = Work(folder=folder, fingerprint="", inputs={}, root=folder)
    artifacts = {job: published(config, job).folder for job in ("preference", "verifier")}
    return MethodRunner.of(
        EvaluateSettings.of(config),
        work,
        policy=artifacts["preference"] / "final",
        verifier=artifacts["verifier"] / "final",
    )


def routers_of(config: Config, runner: MethodRunner, rows: Sequence[FeatureRow]) -> dict[str, tuple[MethodRunner, str]]:
    """Return name -> (runner, method)."""

    def fitted(some: Sequence[FeatureRow], label: LabelKind, model: str) -> tuple[MethodRunner, str]:
        settings = dataclasses.replace(config.router, label=label, model=model)
        return runner.routed_by(fit(labelled(some, label), settings, config.seed)), OURS

    first = [row for row in rows if row.round == 0]
    return {
        OURS: fitted(rows, "counterfactual", config.router.model),
        "r2v, logistic": fitted(rows, "counterfactual", "logistic"),
        "round 0, logistic": fitted(first, "counterfactual", "logistic"),
        "disagreement, on-policy": fitted(rows, "disagreement", config.router.model),
        **{name: (runner, name) for name in ("entropy_router", "entropy_nonfree_router")},
    }


def unread(config: Config, runner: MethodRunner, count: int, skipped: int) -> list[EpisodeSpec]:
    """Return the last `count` training tasks before the `skipped` very last, noisy, under the first evaluation seed.
    Raises SystemExit if one of them was read."""
    selection = TaskSelection.evaluation(config, "noisy")
    benchmark, seeds = runner.world.benchmark, config.evaluation.seeds[:1]
    specs = episode_specs(benchmark, "train", seeds, selection, method="")
    settings = config.router
    read = max(
        config.data.num_episodes or len(specs),
        settings.num_tasks + settings.routed_rounds * settings.round_tasks,
        config.candidates.num_tasks,
        config.verifier.num_tasks,
    )
    if read + count + skipped > len(specs):
        raise SystemExit(f"{len(specs)} training tasks, of which stages read {read}: fewer than {count} are unread")
    return specs[len(specs) - count - skipped : len(specs) - skipped]


def played(runner: MethodRunner, method: str, specs: Sequence[EpisodeSpec], tau: float | None = None) -> list[Episode]:
    """Return the episodes in the order of the specs."""
    cell = runner.cell(method, specs, tau)
    runner.player.play([cell])
    return [episode for (episode,) in runner.player.records(cell)]


def draws_of(episodes: Sequence[Episode]) -> tuple[FloatArray, FloatArray]:
    """Return the mean cost and success over tasks: each the estimate, then paired bootstrap draws."""
    draws = []
    for values in ([episode.billed_cost for episode in episodes], [float(episode.success) for episode in episodes]):
        above = np.array(values, float)
        draws.append(np.concatenate([[above.mean()], bootstrap_draws(above, np.ones_like(above), DRAWS)]))
    return draws[0], draws[1]


def main() -> None:
    """Place, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/mrp.yaml", help="of the finished pipeline (default: %(default)s)")
    parser.add_argument("--num-tasks", type=int, default=150, help="unread tasks to play (default: %(default)s)")
    parser.add_argument(
        "--budgets", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.35], help="r2v's shares of LLM steps"
    )
    parser.add_argument(
        "--skip", type=int, default=0, help="number of last tasks to leave out, one range per look (default: 0)"
    )
    parser.add_argument("--only", nargs="+", help="routers to play, r2v among them (default: all)")
    arguments = parser.parse_args()
    config = load(Path(arguments.config))
    rows = read_rows(published(config, "router_features").folder / "router_features.jsonl")
    with tempfile.TemporaryDirectory(prefix="r2v-unread-") as folder:
        runner = runner_of(config, Path(folder))
        specs = unread(config, runner, arguments.num_tasks, arguments.skip)
        calibration = EvaluateSettings.of(config).calibration_specs(runner.world.benchmark)
        routers = {
            name: of for name, of in routers_of(config, runner, rows).items() if name in (arguments.only or [name])
        }
        ends = {name: played(runner, name, specs) for name in (WEAK, STRONG)}
        points: dict[str, list[list[Episode]]] = {}
        spent: dict[float, float] = {}
        for name, (plays, method) in routers.items():
            own = name == OURS
            targets = {(method, f"{budget:g}"): budget if own else spent[budget] for budget in arguments.budgets}
            placed = place_thresholds(ExecutedPlays(plays, calibration), targets, by="llm_call_rate" if own else "cost")
            chosen = [placed[method, f"{budget:g}"] for budget in arguments.budgets]
            if own:
                spent = {budget: choice.outcome.cost for budget, choice in zip(arguments.budgets, chosen, strict=True)}
            points[name] = [played(plays, method, specs, choice.tau) for choice in chosen]
            print(f"played {name}", flush=True)
    show(arguments.budgets, ends, points)


def show(budgets: Sequence[float], ends: dict[str, list[Episode]], points: dict[str, list[list[Episode]]]) -> None:
    """Print two tables."""
    low, high = (draws_of(ends[name]) for name in (WEAK, STRONG))
    areas: dict[str, FloatArray] = {}
    table = [["", *(f"at r2v's {budget:g}" for budget in budgets), "apgr", "r2v's is higher by", "same as r2v's"]]
    for name, played_at in points.items():
        drawn = [draws_of(episodes) for episodes in played_at]
        cost, success = (np.stack(axis, axis=1) for axis in zip(*drawn, strict=True))
        areas[name] = Curve.through(cost, success, low, high).apgr()
        ahead = areas[OURS] - areas[name]
        bounds = percentile_interval(ahead[1:], 0.95)
        alike = np.mean(
            [
                a.action_hash == b.action_hash
                for mine, ours in zip(played_at, points[OURS], strict=True)
                for a, b in zip(mine, ours, strict=True)
            ]
        )
        cells = [f"{c[1][0]:.3f} for {1e3 * c[0][0]:.2f}" for c in drawn]
        says = f"{ahead[0]:+.3f} [{bounds[0]:+.3f}, {bounds[1]:+.3f}]" if bounds and name != OURS else ""
        table.append([name, *cells, f"{areas[name][0]:.3f}", says, f"{alike:.2f}"])
    print(f"{len(ends[WEAK])} tasks; success for mUSD per episode, as billed")
    print(f"slm_only {low[1][0]:.3f} for {1e3 * low[0][0]:.2f}, llm_only {high[1][0]:.3f} for {1e3 * high[0][0]:.2f}")
    print(text_table(table))


if __name__ == "__main__":
    main()
