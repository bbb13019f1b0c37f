"""Simulation: routing replayed over recorded steps, without training or playing.

    r2v experiments simulate FILE DIR

The recorded steps are the published router features: at each state of a roll-out both continuations were executed, the
small model's and the LLM's. Replaying a threshold takes at each state the continuation that it chooses, so a figure is
of one LLM step with the small model before and after it, not of whole episodes, which `evaluate` plays. The steps of
the calibration tasks are replayed, on which no router was fitted; published routers are used unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from r2v.errors import EmptyResult, InputError
from r2v.experiments.metrics import METRICS, OUTCOMES
from r2v.log import logger
from r2v.plotting import PALETTE, save
from r2v.storage.files import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from r2v.config import Config
    from r2v.router.labels import FeatureRow
    from r2v.router.models import RouterModel

REPLAYED = "calibration"
"""Split whose steps are replayed."""


@dataclass(frozen=True, kw_only=True)
class SimulationFlags:
    """Options of the plots: frontier and reliability always, confusion matrices by default, thresholds on request."""

    show: bool = False
    research_only: bool = False
    no_confusion: bool = False
    advanced: bool = False

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the plots."""
        names = ["frontier", "reliability"]
        if not (self.no_confusion or self.research_only):
            names.append("confusion")
        if self.advanced and not self.research_only:
            names.append("thresholds")
        return tuple(names)


@dataclass(frozen=True, kw_only=True)
class ReplayedMethod:
    """Scores of a method at the recorded steps, and results of its thresholds, the strictest first."""

    name: str
    scores: np.ndarray
    """[num_steps]."""
    gained: np.ndarray
    """[num_steps], True if the LLM's continuation had the higher value."""
    rates: np.ndarray
    """[num_thresholds], share of steps that the LLM takes."""
    success: np.ndarray
    """[num_thresholds], mean executed value of the chosen continuations."""

    def at(self, budget: float) -> int:
        """Return the index of the threshold with the highest LLM share within a budget."""
        return int(np.flatnonzero(self.rates <= budget + 1e-9)[-1])

    def routed(self, budget: float) -> np.ndarray:
        """Return [num_steps], True if the LLM takes the step at that threshold."""
        count = round(float(self.rates[self.at(budget)]) * len(self.scores))
        return np.asarray(self.scores >= (np.sort(self.scores)[::-1][count - 1] if count else np.inf))


def simulate(config_path: Path, folder: Path, flags: SimulationFlags) -> None:
    """Replay the configuration's methods and write figures and plots into the folder. Raise InputError without recorded
    steps, EmptyResult if no recorded step has both continuations."""
    from r2v.config import load

    config = load(config_path)
    rows, routers = recorded(config)
    methods = [replayed(name, rows, routers) for name in _methods(config, routers, rows)]
    budget = config.router.budget
    write_json(folder / METRICS, {key: value for method in methods for key, value in _figures(method, budget).items()})
    best = max(methods, key=lambda method: float(method.success[method.at(budget)]))
    chosen = ((row.q_llm if by_llm else row.q_slm) for row, by_llm in zip(rows, best.routed(budget), strict=True))
    lines = [f"{row.state_id},{value or 0:.6g}" for row, value in zip(rows, chosen, strict=True)]
    write_text(folder / OUTCOMES, "\n".join(["unit,value", *lines]) + "\n")
    for name in flags.figures:
        _draw(folder, name, methods, budget, show=flags.show)
    plots = ",".join(flags.figures)
    logger.info("  simulation done: recorded_steps=%d methods=%d plots=%s", len(rows), len(methods), plots)


def recorded(config: Config) -> tuple[list[FeatureRow], dict[str, RouterModel]]:
    """Return the recorded steps with both continuations, and the published routers by method."""
    from r2v.pipeline.inputs import published
    from r2v.router.labels import read_rows
    from r2v.router.models import load

    rows = read_rows(published(config, "router_features").file("router_features.jsonl"))
    steps = [row for row in rows if row.gain is not None and row.split == REPLAYED]
    if not steps:
        raise EmptyResult(
            f"no recorded step of the {REPLAYED} tasks has both continuations; r2v generate_router_features"
        )
    try:
        router = published(config, "router")
    except InputError:  # no router yet: the untrained methods are replayed
        return steps, {}
    names = {"r2v": "r2v.json", "disagreement_router": "disagreement_router.json"}
    return steps, {name: load(router.file(file)) for name, file in names.items() if file in router.files}


def replayed(method: str, rows: Sequence[FeatureRow], routers: dict[str, RouterModel]) -> ReplayedMethod:
    """Return the results of every threshold of a method over the recorded steps."""
    from r2v.router.baselines import score_function

    score = score_function(method, routers)
    scores = np.array([score(row.features, 0, row.task_id, row.step_idx) for row in rows])
    small = np.array([row.q_slm for row in rows], float)
    large = np.array([row.q_llm for row in rows], float)
    levels = np.concatenate([[np.inf], np.unique(scores)[::-1]])
    routed = scores[None, :] >= levels[:, None]  # [num_thresholds, num_steps]
    return ReplayedMethod(
        name=method,
        scores=scores,
        gained=large > small,
        rates=routed.mean(axis=1),
        success=np.where(routed, large, small).mean(axis=1),
    )


def _methods(config: Config, routers: dict[str, RouterModel], rows: Sequence[FeatureRow]) -> list[str]:
    """Return the evaluated methods whose scores can be computed from the recorded features."""
    from r2v.router.baselines import FIXED_SCORES, SIGNALS

    scored = [name for name in FIXED_SCORES if SIGNALS.get(name) in (None, *rows[0].features)]
    replayable = [*scored, *routers]
    return [name for name in config.evaluation.methods if name in replayable] or [*routers, "random_router"]


def _figures(method: ReplayedMethod, budget: float) -> dict[str, float]:
    at = method.at(budget)
    area = float(np.trapezoid(method.success, method.rates))
    likely = np.clip(method.scores, 0, 1)
    return {
        f"{method.name}/success": round(float(method.success[at]), 6),
        f"{method.name}/llm_rate": round(float(method.rates[at]), 6),
        f"{method.name}/area": round(area, 6),
        f"{method.name}/brier": round(float(np.mean((likely - method.gained) ** 2)), 6),
    }


def _draw(folder: Path, name: str, methods: Sequence[ReplayedMethod], budget: float, *, show: bool) -> None:
    import matplotlib.pyplot as plt

    if not show:
        plt.switch_backend("Agg")
    drawing = {"frontier": _frontier, "reliability": _reliability, "confusion": _confusion, "thresholds": _thresholds}
    figure = plt.figure(figsize=(6, 4), layout="constrained")
    drawing[name](figure, methods, budget)
    save(figure, folder / name, "png")
    if show and plt.get_backend().lower() != "agg":
        plt.show()
    plt.close(figure)


def _frontier(figure: Figure, methods: Sequence[ReplayedMethod], budget: float) -> None:
    axes = figure.subplots()
    for method, colour in zip(methods, PALETTE, strict=False):
        axes.plot(method.rates, method.success, label=method.name, color=colour)
    axes.axvline(budget, color="#999999", linestyle=":")
    axes.set(xlabel="share of LLM steps", ylabel="mean executed value", title="one routed step, replayed")
    axes.legend()


def _reliability(figure: Figure, methods: Sequence[ReplayedMethod], budget: float) -> None:
    axes = figure.subplots()
    for method, colour in zip(methods, PALETTE, strict=False):
        bins = np.clip((method.scores * 10).astype(int), 0, 9)
        filled = [index for index in range(10) if (bins == index).any()]
        likely = [method.scores[bins == index].mean() for index in filled]
        axes.plot(
            likely, [method.gained[bins == index].mean() for index in filled], "o-", label=method.name, color=colour
        )
    axes.plot([0, 1], [0, 1], color="#999999", linestyle=":")
    axes.set(xlabel="score", ylabel="share of steps where the LLM gained", title="reliability")
    axes.legend()


def _confusion(figure: Figure, methods: Sequence[ReplayedMethod], budget: float) -> None:
    for method, axes in zip(methods, figure.subplots(1, len(methods), squeeze=False)[0], strict=True):
        routed = method.routed(budget)
        cells = [[int((routed == a)[method.gained == g].sum()) for a in (False, True)] for g in (False, True)]
        axes.imshow(cells, cmap="Blues")
        for row, column in np.ndindex(2, 2):
            axes.text(column, row, cells[row][column], ha="center", va="center")
        axes.set_xticks([0, 1], ["small", "LLM"])
        axes.set_yticks([0, 1], ["no gain", "gain"])
        axes.set_title(method.name, fontsize=7)


def _thresholds(figure: Figure, methods: Sequence[ReplayedMethod], budget: float) -> None:
    axes = figure.subplots()
    for method, colour in zip(methods, PALETTE, strict=False):
        axes.plot(np.unique(method.scores)[::-1], method.rates[1:], label=method.name, color=colour)
    axes.axhline(budget, color="#999999", linestyle=":")
    axes.set(xlabel="threshold", ylabel="share of LLM steps", title="every threshold")
    axes.legend()
