"""Table of benchmarks/hrl_study.py and plot of its curves, from the finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from r2v.evaluation.measures.statistics import cluster_bootstrap_ci
from r2v.plotting import DASHES, PALETTE, STYLE, save

Runs = Sequence[dict[str, Any]]


def finished_runs(path: Path, iterations: int, episodes: int) -> list[dict[str, Any]]:
    """Return the finished runs of this size."""
    lines = path.read_text().splitlines() if path.exists() else []
    runs = [json.loads(line) for line in lines]
    return [run for run in runs if (run["iterations"], run.get("episodes")) == (iterations, episodes)]


def right(digits: str) -> float:
    """Return the right answers in %."""
    return 100 * digits.count("1") / len(digits)


def grid(runs: Runs, arm: str) -> dict[float, dict[str, Any]]:
    """Return the runs of the grid by factor: those under the seed that was measured on `tune` too."""
    return {run["factor"]: run for run in runs if run["arm"] == arm and "tune" in run["after"]}


def chosen(runs: Runs, arm: str) -> float:
    """Return the factor with the most right last answers on `tune`; ties go to 1, then to the least."""
    by_factor = {factor: right(run["after"]["tune"][1]) for factor, run in grid(runs, arm).items()}
    return max(by_factor, key=lambda factor: (by_factor[factor], factor == 1.0, -factor), default=1.0)


def table(runs: Runs, arms: Sequence[str]) -> list[str]:
    """Return Markdown lines: each arm at the rates that `tune` chose, on the split `eval`, with intervals over problems
    drawn whole; then the grid that they were chosen from."""
    spent = sum(run["cpu_s"] for run in runs) / 3600
    rows = [
        f"{len(runs)} runs, {spent:.2f} CPU-hours.",
        "",
        "| arm | rates | seeds | answer 1, untrained | trained | answer 2, untrained | trained | each seed "
        "| s.d. of seeds |",
        "|" + "---|" * 9,
    ]
    for arm in arms:
        factor = chosen(runs, arm)
        own = [run for run in runs if (run["arm"], run["factor"]) == (arm, factor)]
        cells = [_percent(own, when, turn) for turn in range(2) for when in ("before", "after")]
        seeds = [right(run["after"]["eval"][1]) for run in own]
        each, apart = ", ".join(f"{value:.1f}" for value in seeds), f"{np.std(seeds, ddof=1):.1f}" if own[1:] else ""
        rows.append(f"| {arm} | x{factor:g} | {len(own)} | {' | '.join(cells)} | {each} | {apart} |")
    factors = sorted({run["factor"] for run in runs})
    names = " | ".join(f"x{factor:g}: tune | eval" for factor in factors)
    rows += ["", f"| arm | {names} |", "|" + "---|" * (1 + 2 * len(factors))]
    for arm in arms:
        by_factor = grid(runs, arm)
        cells = [
            f"{right(by_factor[factor]['after'][split][1]):.1f}" if factor in by_factor else ""
            for factor in factors
            for split in ("tune", "eval")
        ]
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    return rows


def _percent(runs: Runs, when: str, turn: int) -> str:
    outcomes = np.array([[float(digit) for digit in run[when]["eval"][turn]] for run in runs]).T
    low, high = cluster_bootstrap_ci(outcomes)
    return f"{100 * outcomes.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def picture(runs: Runs, arms: Sequence[str], path: Path) -> None:
    """Draw curves as `path`.svg: right last answers of the training's own draws, mean of the seeds and of five
    iterations."""
    import matplotlib

    with matplotlib.rc_context({**STYLE, "figure.figsize": (7.0, 3.2)}):
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(layout="constrained")
        for at, arm in enumerate(arms):
            rates = chosen(runs, arm)
            own = [run["curve"] for run in runs if run["arm"] == arm and run["factor"] == rates and run["curve"]]
            if not own:
                continue
            mean = 100 * np.mean(
                [[pair[-1] if pair[-1] is not None else pair[0] for pair in curve] for curve in own], 0
            )
            smooth = np.convolve(mean, np.ones(5) / 5, "valid")
            style = {"color": PALETTE[at % len(PALETTE)], "linestyle": DASHES[at % len(DASHES)]}
            axes.plot(np.arange(len(smooth)) + 3, smooth, label=f"{arm} ({len(own)})", **style)
        axes.set(xlabel="iteration", ylabel="right last answers, %")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        save(figure, path, "svg")
        plt.close(figure)
