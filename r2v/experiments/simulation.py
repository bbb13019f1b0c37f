"""Simulation: routing replayed over recorded steps, without training and without playing.

    r2v experiments simulate FILE DIR

What is recorded are the router features that the pipeline published: at each state of a roll-out both continuations
were executed, the small model's and the LLM's. A threshold is replayed by taking at each state the one that it
chooses, so a figure is of one LLM step with the small model before and after it. It is no episode: what a router comes
to over whole episodes is for `evaluate` to play. The steps of the calibration tasks are replayed, of which no router
was fitted; one that the pipeline has published is used as it is.
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
"""The split whose steps are replayed."""


@dataclass(frozen=True, kw_only=True)
class SimulationFlags:
    """What is drawn: the frontier always, confusion matrices too, reliability and thresholds where asked for."""

    show: bool = False
    research_only: bool = False
    no_confusion: bool = False
    advanced: bool = False

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the plots."""
        names = ["frontier", "reliability"]
        if not (self.no_confusion or self.research_only):
            names.append("confusion")
        if self.advanced and not self.research_only:
            names.append("thresholds")
        return tuple(names)


@dataclass(frozen=True, kw_only=True)
class ReplayedMethod:
    """A method's scores of the recorded steps, and what its thresholds come to: arrays over thresholds, the strictest
    first."""

    name: str
    scores: np.ndarray
    gained: np.ndarray
    """By step: whether the LLM's continuation was worth more."""
    rates: np.ndarray
    """Share of steps that the LLM takes."""
    success: np.ndarray
    """Mean executed value of the chosen continuations."""

    def at(self, budget: float) -> int:
        """The threshold with the highest LLM share that a budget allows."""
        return int(np.flatnonzero(self.rates <= budget + 1e-9)[-1])


def simulate(config_path: Path, folder: Path, flags: SimulationFlags) -> None:
    """Replay the configuration's methods and leave figures and plots in the folder. Raises InputError where nothing is
    recorded, EmptyResult where no recorded step has both continuations."""
    from r2v.config import load

    config = load(config_path)
    rows, routers = recorded(config)
    methods = [replayed(name, rows, routers) for name in _methods(config, routers, rows)]
    write_json(
        folder / METRICS, {key: value for one in methods for key, value in _figures(one, config.router.budget).items()}
    )
    best = max(methods, key=lambda one: float(one.success[one.at(config.router.budget)]))
    chosen = _chosen(best, config.router.budget, rows)
    lines = [f"{row.state_id},{value:.6g}" for row, value in zip(rows, chosen, strict=True)]
    write_text(folder / OUTCOMES, "\n".join(["unit,value", *lines]) + "\n")
    for name in flags.figures:
        _draw(folder, name, methods, config.router.budget, show=flags.show)
    logger.info("  %d recorded steps, %d methods; plots: %s", len(rows), len(methods), ", ".join(flags.figures))


def recorded(config: Config) -> tuple[list[FeatureRow], dict[str, RouterModel]]:
    """The recorded steps with both continuations, and the routers that are published beside them."""
    from r2v.pipeline.inputs import published
    from r2v.router.labels import read_rows
    from r2v.router.models import load

    rows = read_rows(published(config, "router_features").file("router_features.jsonl"))
    kept = [row for row in rows if row.gain is not None and row.split == REPLAYED]
    if not kept:
        raise EmptyResult(
            f"no recorded step of the {REPLAYED} tasks has both continuations; r2v generate_router_features"
        )
    try:
        router = published(config, "router")
    except InputError:
        return kept, {}
    names = {"r2v": "r2v.json", "disagreement_router": "disagreement_router.json"}
    return kept, {name: load(router.file(file)) for name, file in names.items() if file in router.files}


def replayed(method: str, rows: Sequence[FeatureRow], routers: dict[str, RouterModel]) -> ReplayedMethod:
    """Every threshold of a method over the recorded steps."""
    from r2v.router.baselines import score_function

    score = score_function(method, routers)
    scores = np.array([score(row.features, 0, row.task_id, row.step_idx) for row in rows])
    small = np.array([row.q_slm for row in rows], float)
    large = np.array([row.q_llm for row in rows], float)
    levels = np.concatenate([[np.inf], np.unique(scores)[::-1]])
    taken = scores[None, :] >= levels[:, None]
    return ReplayedMethod(
        name=method,
        scores=scores,
        gained=large > small,
        rates=taken.mean(axis=1),
        success=np.where(taken, large, small).mean(axis=1),
    )


def _methods(config: Config, routers: dict[str, RouterModel], rows: Sequence[FeatureRow]) -> list[str]:
    """The methods that are evaluated and whose scores the recorded features allow."""
    from r2v.router.baselines import FIXED_SCORES, SIGNALS

    scored = [name for name in FIXED_SCORES if SIGNALS.get(name) in (None, *rows[0].features)]
    known = [*scored, *routers]
    return [name for name in config.evaluation.methods if name in known] or [*routers, "random_router"]


def _figures(one: ReplayedMethod, budget: float) -> dict[str, float]:
    at = one.at(budget)
    area = float(np.trapezoid(one.success, one.rates))
    likely = np.clip(one.scores, 0, 1)
    return {
        f"{one.name}/success": round(float(one.success[at]), 6),
        f"{one.name}/llm_rate": round(float(one.rates[at]), 6),
        f"{one.name}/area": round(area, 6),
        f"{one.name}/brier": round(float(np.mean((likely - one.gained) ** 2)), 6),
    }


def _chosen(one: ReplayedMethod, budget: float, rows: Sequence[FeatureRow]) -> list[float]:
    rate = one.rates[one.at(budget)]
    ordered = np.sort(one.scores)[::-1]
    count = round(float(rate) * len(rows))
    level = ordered[count - 1] if count else np.inf
    return [float((row.q_llm if s >= level else row.q_slm) or 0) for row, s in zip(rows, one.scores, strict=True)]


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
    for one, colour in zip(methods, PALETTE, strict=False):
        axes.plot(one.rates, one.success, label=one.name, color=colour)
    axes.axvline(budget, color="#999999", linestyle=":")
    axes.set(xlabel="share of LLM steps", ylabel="mean executed value", title="one routed step, replayed")
    axes.legend()


def _reliability(figure: Figure, methods: Sequence[ReplayedMethod], budget: float) -> None:
    axes = figure.subplots()
    for one, colour in zip(methods, PALETTE, strict=False):
        bins = np.clip((one.scores * 10).astype(int), 0, 9)
        filled = [index for index in range(10) if (bins == index).any()]
        likely = [one.scores[bins == index].mean() for index in filled]
        axes.plot(likely, [one.gained[bins == index].mean() for index in filled], "o-", label=one.name, color=colour)
    axes.plot([0, 1], [0, 1], color="#999999", linestyle=":")
    axes.set(xlabel="score", ylabel="share of steps where the LLM gained", title="reliability")
    axes.legend()


def _confusion(figure: Figure, methods: Sequence[ReplayedMethod], budget: float) -> None:
    for one, axes in zip(methods, figure.subplots(1, len(methods), squeeze=False)[0], strict=True):
        count = round(float(one.rates[one.at(budget)]) * len(one.scores))
        asked = one.scores >= (np.sort(one.scores)[::-1][count - 1] if count else np.inf)
        cells = [[int((asked == a)[one.gained == g].sum()) for a in (False, True)] for g in (False, True)]
        axes.imshow(cells, cmap="Blues")
        for row, column in np.ndindex(2, 2):
            axes.text(column, row, cells[row][column], ha="center", va="center")
        axes.set_xticks([0, 1], ["small", "LLM"])
        axes.set_yticks([0, 1], ["no gain", "gain"])
        axes.set_title(one.name, fontsize=7)


def _thresholds(figure: Figure, methods: Sequence[ReplayedMethod], budget: float) -> None:
    axes = figure.subplots()
    for one, colour in zip(methods, PALETTE, strict=False):
        axes.plot(np.unique(one.scores)[::-1], one.rates[1:], label=one.name, color=colour)
    axes.axhline(budget, color="#999999", linestyle=":")
    axes.set(xlabel="threshold", ylabel="share of LLM steps", title="every threshold")
    axes.legend()
