"""Figures of a report, each drawn from its series (`r2v.report.series`) alone.

frontier      success over USD per episode as billed, every operating point of every method
success       success with 95 % intervals, by method
categories    success by the perturbation that hit, of every method
ranking       share of steps where asking was right, over the rank of a router's score, in bins of equal counts
reliability   the same over the score itself, for scores that are a probability
ablations     change in success without one part, paired by task
losses        training losses by optimizer step
stages        hours of each stage

A figure is a number of panels, each an image of its own: the page puts as many side by side as a screen has room for,
and a paper takes those that it needs. Both are drawn by the same functions, in the form of the page or of a paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r2v.config.methods import METHODS, ORACLE, OURS, ROUTERS, STRONG, WEAK
from r2v.errors import InputError
from r2v.plotting import DASHES, INK, MARKERS, PALETTE, STYLE
from r2v.report.series import Series, grouped

Look = dict[str, Any]
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Form:
    """Width of a panel in inches, and size of all of its text in points."""

    width: float
    text: float

    @property
    def style(self) -> dict[str, Any]:
        """Settings of matplotlib."""
        sizes = dict.fromkeys(("font.size", "axes.titlesize", "legend.fontsize"), self.text)
        clear = dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none")  # the page's own ground, light or dark
        return {**STYLE, **sizes, **clear, "xtick.labelsize": self.text, "ytick.labelsize": self.text}

    def points(self, size: float) -> float:
        """Return the width of a mark or a line that is `size` points next to text of 12."""
        return size * self.text / 12

    def axes(self, height: float) -> Any:
        """Return the axes of a new figure, `height` lines of its text high."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(self.width, height * self.text / 60), layout="constrained")
        return figure.subplots()


_MOST_PANELS = 100
PAGE, PAPER = Form(width=4.3, text=12), Form(width=3.25, text=8)
"""A third of a page on a screen; a column of a paper with two."""


def draw(name: str, data: Series, form: Form = PAGE) -> dict[str, Any]:
    """Return the figures (of matplotlib) of a series, one for each panel, by the panel's title. Draw and save
    them under `form.style`."""
    column, panel = _DRAWN[name]
    groups = grouped(data.rows, column) if column else {"": data.rows}
    if len(groups) > _MOST_PANELS:
        raise InputError(f"{data.source}: would make {len(groups)} panels of figure {name}, allowed: {_MOST_PANELS}")
    return {title: panel(rows, data, form).figure for title, rows in groups.items()}


def short(method: str) -> str:
    """Return a method's name in a figure."""
    return method.removesuffix("_router")


def look(method: str) -> Look:
    """Return a method's colour and marker, the same in every figure; r2v and the ends of the frontier have fixed
    ones."""
    fixed = {OURS: (1, 0), STRONG: (6, 5), WEAK: (6, 6)}
    others = [name for name in METHODS if name not in fixed]
    colour, marker = fixed.get(method) or (
        (0, 2, 3, 4, 5)[others.index(method) % 5] if method in others else 0,
        1 + (others.index(method) if method in others else 0) % 4,
    )
    return {"color": PALETTE[colour], "marker": MARKERS[marker]}


def _stressed(method: str, form: Form) -> Look:
    """Return a method's look as a line: r2v's is wider, and above the others."""
    width, order = (2.5, 4) if method == OURS else (1, 3)
    return {"linewidth": form.points(width), "zorder": order, **look(method)}


def _interval(axes: Any, row: dict[str, Any], column: str, at: float, *, lying: bool) -> None:
    if row[f"{column}_low"] is not None:
        ends = (row[f"{column}_low"], row[f"{column}_high"])
        (axes.hlines if lying else axes.vlines)(at, *ends, color=INK, linewidth=1, alpha=0.5)


def _by_method(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    return dict(sorted(grouped(rows, "method").items(), key=lambda item: (item[0] == OURS, item[0] == ORACLE)))


def _frontier(rows: Rows, data: Series, form: Form) -> Any:
    methods = _by_method(rows)
    axes = form.axes(max(22, 6 + 1.3 * len(methods)))
    ends = [row for row in rows if row["method"] in (WEAK, STRONG)]
    if len(ends) == 2:
        xs, ys = _line(*ends)
        axes.plot(xs, ys, linestyle=":", color=PALETTE[6], linewidth=1)
    named = {}
    for number, (method, points) in enumerate(methods.items()):
        at = sorted(points, key=lambda row: row["usd_per_episode"])
        main = next((row for row in at if row["operating_point"] == "main"), at[0])
        named[method] = main["usd_per_episode"], main["success"]
        _interval(axes, main, "success", main["usd_per_episode"], lying=False)
        axes.plot(
            [row["usd_per_episode"] for row in at],
            [row["success"] for row in at],
            linestyle="-" if method == OURS else DASHES[number % len(DASHES)] if method in ROUTERS else "none",
            markersize=form.points(8 if method == OURS else 6),
            **_stressed(method, form),
        )
    least = min(row["success"] if row["success_low"] is None else row["success_low"] for row in data.rows)
    axes.set_ylim(min(0.5, max(0, int(10 * least) / 10)) - 0.03, 1.03)
    _dollars(axes, [row["usd_per_episode"] for row in data.rows])
    axes.set(xlabel="US dollars per episode, log scale", ylabel="success")
    _name_ends(axes, named, form)
    return axes


def _line(weak: dict[str, Any], strong: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return mixtures of the two models, which make a straight line over dollars and a curve over their logarithm."""
    shares = [number / 50 for number in range(51)]
    return (
        [(1 - share) * weak["usd_per_episode"] + share * strong["usd_per_episode"] for share in shares],
        [(1 - share) * weak["success"] + share * strong["success"] for share in shares],
    )


def _dollars(axes: Any, prices: Sequence[float]) -> None:
    """Set a logarithmic axis of dollars. Methods that cost nothing are at $0, left of a mark where the scale breaks."""
    paid = sorted(price for price in prices if price > 0)
    if not paid:
        axes.set_xlim(-1, 1)
        axes.set_xticks([0], ["$0"])
        return
    low, high = paid[0] / 1.3, paid[-1] * 1.3
    ticks = [tick for tick in _ticks(low, high) if low <= tick <= high]
    if len(paid) < len(prices):
        axes.set_xscale("symlog", linthresh=low, linscale=0.4)
        axes.axvline(low / 2, color=INK, linewidth=1, linestyle=(0, (2, 3)))
        ticks, start = [0, *ticks], -low / 3
    else:
        axes.set_xscale("log")
        start = low
    axes.set_xlim(start, high)
    axes.set_xticks(ticks, [_price(tick) for tick in ticks])
    axes.minorticks_off()


def _price(usd: float) -> str:
    """Return the label of a tick on an axis of dollars."""
    return f"${usd:.4f}".rstrip("0").rstrip(".") if usd == 0 or usd >= 1e-4 else f"${usd:.0e}".replace("e-0", "e-")


def _ticks(low: float, high: float) -> list[float]:
    """Return one to four round prices between two."""
    import math

    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for leads in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [lead * 10.0**power for power in range(first, last + 1) for lead in leads]
        if len(inside := [tick for tick in ticks if low <= tick <= high]) >= 2:
            return inside[:: -(-len(inside) // 4)]
    return [math.sqrt(low * high)]


def _name_ends(axes: Any, named: dict[str, tuple[float, float]], form: Form) -> None:
    """Write each method's name at the right of the axes, as near to the height of its point as the others allow."""
    low, high = axes.get_ylim()
    points = axes.figure.get_size_inches()[1] * 72 - 4 * form.text
    methods = sorted(named, key=lambda name: named[name][1])
    heights = _apart([named[name][1] for name in methods], 1.25 * form.text / points * (high - low), high)
    beside = axes.get_yaxis_transform()
    for method, height in zip(methods, heights, strict=True):
        axes.annotate(
            "",
            xy=named[method],
            xytext=(1.03, height),
            textcoords=beside,
            arrowprops={"arrowstyle": "-", "color": PALETTE[6], "linewidth": 0.6, "alpha": 0.6, "shrinkB": 4},
            annotation_clip=False,
        )
        axes.plot([1.06], [height], transform=beside, clip_on=False, markersize=0.5 * form.text, **look(method))
        weight = "bold" if method == OURS else "normal"
        axes.text(1.1, height, short(method), transform=beside, va="center", weight=weight)


def _apart(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Return the ascending heights, moved just enough to be a gap apart and below the top."""
    up, down = list(heights), list(heights)
    for number in range(1, len(up)):
        up[number] = max(up[number], up[number - 1] + gap)
    for number in reversed(range(len(down) - 1)):
        down[number] = min(down[number], down[number + 1] - gap)
    placed = [(higher + lower) / 2 for higher, lower in zip(up, down, strict=True)]
    for number in reversed(range(len(placed))):
        placed[number] = min(placed[number], top if number == len(placed) - 1 else placed[number + 1] - gap)
    return placed


def _success(rows: Rows, data: Series, form: Form) -> Any:
    methods = list(dict.fromkeys(row["method"] for row in data.rows))
    axes = _dots(methods, "success", form)
    for row in rows:
        y = -methods.index(row["method"])
        _interval(axes, row, "success", y, lying=True)
        axes.plot(row["success"], y, linestyle="none", markersize=form.points(7), **look(row["method"]))
    return axes


def _dots(methods: Sequence[str], label: str, form: Form, lines: float = 1.3) -> Any:
    """Return axes with a line for each method, from the top, over a share."""
    axes = form.axes(4 + lines * len(methods))
    axes.set_yticks([-number for number in range(len(methods))], [short(method) for method in methods])
    axes.set(ylim=(0.6 - len(methods), 0.6), xlim=(-0.03, 1.03), xlabel=label)
    return axes


def _categories(rows: Rows, data: Series, form: Form) -> Any:
    methods = list(dict.fromkeys(row["method"] for row in data.rows))
    conditions = list(grouped(data.rows, "condition"))
    axes = _dots(methods, "success of the episodes that it hit", form, 1.5)
    for row in rows:
        if row["success"] is not None:
            number = conditions.index(row["condition"])
            y = 0.2 * ((len(conditions) - 1) / 2 - number) - methods.index(row["method"])
            _interval(axes, row, "success", y, lying=True)
            fill = {"fillstyle": _FILLS[number % len(_FILLS)], "linestyle": "none"}
            axes.plot(row["success"], y, markersize=form.points(6), **fill, **look(row["method"]))
    return axes


_FILLS = ("full", "none", "left")
"""Fill styles of the marks of the first, second and third condition."""


def _ranking(rows: Rows, data: Series, form: Form) -> Any:
    axes = form.axes(max(20, 5 + 1.3 * len(grouped(data.rows, "method"))))
    named = {}
    for method, bins in _by_method(rows).items():
        xs, ys = [row["rank"] for row in bins], [row["share_right"] for row in bins]
        axes.plot(xs, ys, markersize=form.points(5), **_stressed(method, form))
        named[method] = xs[-1], ys[-1]
    axes.set(xlim=(0, 1), ylim=(-0.02, None))
    axes.set(xlabel="share of steps with a lower score", ylabel="share where asking was right")
    _name_ends(axes, named, form)
    return axes


def _reliability(rows: Rows, data: Series, form: Form) -> Any:
    axes = form.axes(20)
    axes.plot([0, 1], [0, 1], color=PALETTE[6], linestyle=":", linewidth=1)
    for method, bins in _by_method(rows).items():
        xs, ys = [row["mean_score"] for row in bins], [row["share_right"] for row in bins]
        axes.plot(xs, ys, label=method, linewidth=form.points(1.5), markersize=form.points(6), **look(method))
    most = 1.1 * max(max(row["mean_score"], row["share_right"]) for row in data.rows) or 1
    ends = (-0.03 * most, min(1.03, most))
    axes.set(xlim=ends, ylim=ends)
    axes.set(xlabel=f"score of {', '.join(_by_method(rows))}", ylabel="share where asking was right")
    return axes


def _ablations(rows: Rows, data: Series, form: Form) -> Any:
    axes = form.axes(5 + 1.5 * len(rows))
    at = [float(len(rows) - number) for number in range(len(rows))]
    for row, y in zip(rows, at, strict=True):
        _interval(axes, row, "difference", y, lying=True)
    axes.plot([row["difference"] for row in rows], at, linestyle="none", marker="D", color=PALETTE[0])
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(at, [row["name"] for row in rows])
    axes.locator_params(axis="x", nbins=3)
    axes.set(ylim=(0.4, len(rows) + 0.6), xlabel="success without the part,\nless success with it")
    return axes


def _losses(rows: Rows, data: Series, form: Form) -> Any:
    axes = form.axes(16)
    axes.plot([row["step"] for row in rows], [row["loss"] for row in rows], color=PALETTE[0], linewidth=1.5)
    axes.set(xlabel="optimizer step", ylabel="loss", ylim=(0, None))
    return axes


def _stages(rows: Rows, data: Series, form: Form) -> Any:
    axes = form.axes(5 + 1.4 * len(rows))
    at = [len(rows) - number for number in range(len(rows))]
    axes.barh(at, [row["hours"] or 0 for row in rows], height=0.7, color=PALETTE[0])
    axes.set_yticks(at, [row["stage"] for row in rows])
    axes.set_xlabel("hours by the clock\n(no bar: no record)")
    axes.grid(axis="y", visible=False)
    return axes


_DRAWN: dict[str, tuple[str, Callable[[Rows, Series, Form], Any]]] = {
    "frontier": ("condition", _frontier),
    "success": ("condition", _success),
    "categories": ("category", _categories),
    "ranking": ("condition", _ranking),
    "reliability": ("condition", _reliability),
    "ablations": ("condition", _ablations),
    "losses": ("stage", _losses),
    "stages": ("", _stages),
}
"""Figure -> the column that makes its panels, and the function that draws one."""
