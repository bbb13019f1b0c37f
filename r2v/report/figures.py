"""Figures of a report: each is drawn from its series (`r2v.report.series`) and from nothing else.

frontier      success over USD per episode as billed, every operating point of every method, a panel per condition
success       success with 95 % intervals, by method and condition
categories    success by the perturbation that hit, for the methods that matter most
reliability   how often asking was right, over the router's score, in bins of as many steps each
ablations     what taking one part away changes, paired by task
losses        training losses by optimizer step
stages        hours of each stage
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from r2v.config.methods import METHODS, ORACLE, OURS, ROUTERS, STRONG, WEAK
from r2v.plotting import DASHES, INK, MARKERS, PALETTE, legend_below, panels
from r2v.report.series import Series

Look = dict[str, Any]
_NAMED = (WEAK, STRONG, OURS, "entropy_router")
"""Whose success is shown by category."""


def draw(name: str, data: Series) -> Any:
    """The figure (of matplotlib) of a series."""
    return _DRAWN[name](data)


def look(method: str) -> Look:
    """A method's colour and marker, the same in every figure: ours and the ends of the frontier never change theirs."""
    fixed = {OURS: (1, 0), STRONG: (6, 5), WEAK: (6, 6)}
    others = [name for name in METHODS if name not in fixed]
    colour, marker = fixed.get(method) or (
        (0, 2, 3, 4, 5)[others.index(method) % 5] if method in others else 0,
        1 + (others.index(method) if method in others else 0) % 4,
    )
    return {"color": PALETTE[colour], "marker": MARKERS[marker]}


def _error_bars(axes: Any, rows: Sequence[dict[str, Any]], column: str, at: Sequence[float], *, lying: bool) -> None:
    for row, place in zip(rows, at, strict=True):
        if row[f"{column}_low"] is not None:
            ends = (row[f"{column}_low"], row[f"{column}_high"])
            (axes.hlines if lying else axes.vlines)(place, *ends, color=INK, linewidth=0.8, alpha=0.5)


def _frontier(data: Series) -> Any:
    conditions = data.groups("condition")
    axes = panels(conditions, width=3.4, height=3.2)
    for one, rows in zip(axes, conditions.values(), strict=True):
        ends = [row for row in rows if row["method"] in (WEAK, STRONG)]
        one.plot(
            [row["usd_per_episode"] for row in ends],
            [row["success"] for row in ends],
            linestyle=":",
            color=PALETTE[6],
            linewidth=1,
        )
        for number, (method, points) in enumerate(_by_method(rows).items()):
            at = sorted(points, key=lambda row: row["usd_per_episode"])
            xs = [row["usd_per_episode"] for row in at]
            _error_bars(one, at, "success", xs, lying=False)
            routed = method in ROUTERS
            one.plot(
                xs,
                [row["success"] for row in at],
                label=method,
                linestyle=DASHES[number % len(DASHES)] if routed else "none",
                linewidth=2 if method == OURS else 1,
                markersize=6 if method == OURS or not routed else 4,
                **look(method),
            )
        one.set_xlabel("US dollars an episode, as billed")
        one.set_ylim(-0.02, 1.02)
    axes[0].set_ylabel("success")
    legend_below(axes[0].figure, axes[0], 4)
    return axes[0].figure


def _by_method(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return {name: found[name] for name in sorted(found, key=lambda name: (name == OURS, name == ORACLE))}


def _success(data: Series) -> Any:
    conditions = data.groups("condition")
    height = 0.6 + 0.28 * max(len(rows) for rows in conditions.values())
    axes = panels(conditions, width=3.2, height=height, share_y=True)
    for one, rows in zip(axes, conditions.values(), strict=True):
        at = [float(len(rows) - number) for number in range(len(rows))]
        _error_bars(one, rows, "success", at, lying=True)
        for row, y in zip(rows, at, strict=True):
            one.plot(row["success"], y, linestyle="none", **look(row["method"]))
        one.set_yticks(at, [row["method"] for row in rows])
        one.set_xlim(-0.02, 1.02)
        one.set_xlabel("success")
    return axes[0].figure


def _categories(data: Series) -> Any:
    conditions = data.groups("condition")
    most = max(len({row["category"] for row in rows}) for rows in conditions.values())
    axes = panels(conditions, width=3.4, height=0.9 + 0.45 * most, columns=2, share_y=False)
    for one, rows in zip(axes, conditions.values(), strict=True):
        names = list(dict.fromkeys(row["category"] for row in rows))
        for number, method in enumerate(_NAMED):
            own = [row for row in rows if row["method"] == method and row["success"] is not None]
            at = [names.index(row["category"]) + 0.15 * (number - 1.5) for row in own]
            _error_bars(one, own, "success", at, lying=True)
            one.plot([row["success"] for row in own], at, linestyle="none", markersize=4, label=method, **look(method))
        one.set_yticks(range(len(names)), names)
        one.set_xlim(-0.02, 1.02)
        one.set_xlabel("success of the episodes that it hit")
    legend_below(axes[0].figure, axes[0], 4)
    return axes[0].figure


def _reliability(data: Series) -> Any:
    conditions = data.groups("condition")
    axes = panels(conditions, width=3.0, height=3.0)
    for one, rows in zip(axes, conditions.values(), strict=True):
        one.plot([0, 1], [0, 1], color=PALETTE[6], linestyle=":", linewidth=1)
        for method, bins in _by_method(rows).items():
            xs, ys = [row["mean_score"] for row in bins], [row["share_right"] for row in bins]
            one.plot(xs, ys, label=method, linewidth=1, markersize=4, **look(method))
        one.set_xlabel("router's score")
    axes[0].set_ylabel("share where asking was right")
    legend_below(axes[0].figure, axes[0], 4)
    return axes[0].figure


def _ablations(data: Series) -> Any:
    conditions = data.groups("condition")
    height = 0.8 + 0.28 * max(len(rows) for rows in conditions.values())
    axes = panels(conditions, width=4.2, height=height, columns=2, share_y=False)
    for one, rows in zip(axes, conditions.values(), strict=True):
        at = [float(len(rows) - number) for number in range(len(rows))]
        _error_bars(one, rows, "difference", at, lying=True)
        one.plot([row["difference"] for row in rows], at, linestyle="none", marker="D", color=PALETTE[0])
        one.axvline(0, color=INK, linewidth=0.8)
        one.set_yticks(at, [row["name"] for row in rows])
        one.set_xlabel("success without the part, less success with it")
    return axes[0].figure


def _losses(data: Series) -> Any:
    stages = data.groups("stage")
    axes = panels(stages, width=3.4, height=2.4, share_y=False)
    for one, rows in zip(axes, stages.values(), strict=True):
        one.plot([row["step"] for row in rows], [row["loss"] for row in rows], color=PALETTE[0], linewidth=1)
        one.set_xlabel("optimizer step")
        one.set_ylabel("loss")
        one.set_ylim(bottom=0)
    return axes[0].figure


def _stages(data: Series) -> Any:
    axes = panels([""], width=6.4, height=0.8 + 0.28 * len(data.rows))[0]
    at = [len(data.rows) - number for number in range(len(data.rows))]
    axes.barh(at, [row["hours"] or 0 for row in data.rows], height=0.7, color=PALETTE[0])
    axes.set_yticks(at, [row["stage"] for row in data.rows])
    axes.set_xlabel("hours by the clock (a stage without a bar has no record)")
    axes.grid(axis="y", visible=False)
    return axes.figure


_DRAWN: dict[str, Callable[[Series], Any]] = {
    "frontier": _frontier,
    "success": _success,
    "categories": _categories,
    "reliability": _reliability,
    "ablations": _ablations,
    "losses": _losses,
    "stages": _stages,
}
