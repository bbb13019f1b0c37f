"""Figures of a job as PDF, PNG and SVG, with titles, units and 95 % bands.

    rates           by model: revealed, obtained, optimal, leaked in part (percent; Wilson's intervals)
    leaked_bits     by model: mean bits given away after each own message (bootstrap over pairs of secrets)
    time_to_reveal  by model: Kaplan-Meier curves of secrets still kept (Greenwood's bands)
    first_mover     reveal rates of openers and followers, by the models of both
    factors         effect of each level, if a design varies factors (points; bootstrap over replicates)

The files are a function of `analysis.json` without times or paths: the same analysis gives the same bytes with the same
version of matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r2v.game.statistics.summary import SummaryStats
from r2v.plotting import DASHES, PALETTE, STYLE, FigureFormat, legend_below, save

_EVENTS = (
    ("revealed", "secret revealed"),
    ("obtained", "other's secret obtained"),
    ("optimal", "obtained, own kept"),
    ("leaked_in_part", "own leaked in part"),
)


def write_figures(analysis: SummaryStats, folder: Path, formats: Sequence[FigureFormat]) -> list[Path]:
    """Write every figure of `analysis` (the content of `analysis.json`) in every format and return the paths."""
    import matplotlib

    paths = []
    with matplotlib.rc_context(STYLE):
        for form in formats:
            # New figures per format: saving one changes its layout slightly, and the bytes must not depend on that.
            for name, figure in make_figures(analysis).items():
                paths.append(save(figure, folder / name, form))
    return paths


def make_figures(analysis: SummaryStats) -> dict[str, Any]:
    """Return matplotlib figures by name. Figures without data are left out."""
    models = [row for row in analysis["models"] if row["interactions"]]
    if not models:
        return {}
    figures = {
        "rates": _rates(models),
        "leaked_bits": _leaked_bits(models),
        "time_to_reveal": _survival(analysis["time_to_reveal"]["models"]),
        "first_mover": _first_mover(analysis["first_mover"]["matrix"]),
    }
    if analysis["factors"]:
        figures["factors"] = _factors(analysis["factors"])
    return figures


def _axes(title: str, x_label: str, y_label: str, *, width: float = 6.4, height: float = 3.6) -> Any:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(width, height), layout="constrained").subplots()
    axes.set_title(title, loc="left")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return axes


def _rates(models: Sequence[SummaryStats]) -> Any:
    axes = _axes(
        "How often secrets were given away and obtained, with 95 % intervals",
        "model (n conversations)",
        "share of its conversations (%)",
        width=max(6.4, 1.5 * len(models) + 2),
    )
    width = 0.8 / len(_EVENTS)
    for number, (event, label) in enumerate(_EVENTS):
        shares = [row["leak"]["partial"] if event == "leaked_in_part" else row[event] for row in models]
        at = [k + (number - (len(_EVENTS) - 1) / 2) * width for k in range(len(models))]
        axes.bar(at, [share["percent"] for share in shares], 0.9 * width, color=PALETTE[number], label=label)
        for x, share in zip(at, shares, strict=True):
            if share["wilson"] is not None:
                axes.vlines(x, *share["wilson"], color="#333333", linewidth=1)
    axes.set_xticks(range(len(models)), [f"{_wrapped(row['name'])}\n(n={row['interactions']})" for row in models])
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 100)
    legend_below(axes.figure, axes, 2)
    return axes.figure


def _curve_height(models: Sequence[SummaryStats]) -> float:
    """Return the height in inches of a figure of curves, with room for its two-column legend."""
    return 3.2 + 0.32 * (len(models) // 2 + 1)


def _leaked_bits(models: Sequence[SummaryStats]) -> Any:
    axes = _axes(
        "How much of the secrets was given away, pieces included, with 95 % bands",
        "own messages",
        "bits given away (mean)",
        height=_curve_height(models),
    )
    for number, row in enumerate(models):
        points = [{"message": 0, "mean": 0.0, "interval": [0.0, 0.0]}, *row["leak"]["by_message"]]
        style = _curve_style(number)
        messages = [point["message"] for point in points]
        axes.plot(
            messages,
            [point["mean"] for point in points],
            label=_wrapped(row["name"], 40),
            marker="o",
            markersize=3,
            **style,
        )
        if all(point["interval"] for point in points):
            low, high = zip(*(point["interval"] for point in points), strict=True)
            axes.fill_between(messages, low, high, color=style["color"], alpha=0.15, linewidth=0)
    entropy = max(row["leak"]["entropy"] for row in models)
    axes.axhline(entropy, color="#777777", linewidth=0.8, linestyle=":", label=f"a whole secret ({entropy:.1f} bits)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, 1.05 * entropy)
    legend_below(axes.figure, axes, 2)
    return axes.figure


def _survival(models: Sequence[SummaryStats]) -> Any:
    axes = _axes(
        "How long secrets were kept (Kaplan-Meier, 95 % bands)",
        "own messages",
        "secrets still kept (%)",
        height=_curve_height(models),
    )
    last = max(max(row["last_message"], row["curve"][-1]["message"]) for row in models) + 0.5
    for number, row in enumerate(models):
        style = _curve_style(number)
        points = [*row["curve"], {**row["curve"][-1], "message": last}]
        messages = [point["message"] for point in points]
        axes.step(
            messages, [100 * point["kept"] for point in points], where="post", label=_wrapped(row["name"], 40), **style
        )
        bands = [point["interval"] or [point["kept"]] * 2 for point in points]
        low, high = ([100 * band[side] for band in bands] for side in (0, 1))
        axes.fill_between(messages, low, high, step="post", color=style["color"], alpha=0.15, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, 103)
    axes.set_xlim(0, last)
    legend_below(axes.figure, axes, 2)
    return axes.figure


def _first_mover(cells: Sequence[SummaryStats]) -> Any:
    from matplotlib.figure import Figure

    names = sorted({cell[side] for cell in cells for side in ("first", "second")})
    size = max(2.4, 0.9 * len(names) + 1.2)
    figure = Figure(figsize=(2 * size + 1.6, size + 0.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, role in zip(panels, ("first", "second"), strict=True):
        rates = [[float("nan")] * len(names) for _ in names]
        for cell in cells:
            row, column = names.index(cell["first"]), names.index(cell["second"])
            percent = cell[f"{role}_revealed"]["percent"]
            rates[row][column] = percent
            ink = "white" if percent > 60 else "black"
            text = f"{percent:.0f} %\nn={cell['interactions']}"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
        image = axes.imshow(rates, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        axes.set_title(f"{'Openers' if role == 'first' else 'Followers'} that revealed", loc="left")
        axes.set_xticks(range(len(names)), [_wrapped(name, 14) for name in names], rotation=30, ha="right")
        axes.set_yticks(range(len(names)), [_wrapped(name, 18) for name in names])
        axes.set_xlabel("model that followed")
        axes.grid(visible=False)
    panels[0].set_ylabel("model that opened")
    figure.colorbar(image, ax=list(panels), label="revealed (%)", shrink=0.8)
    return figure


def _factors(factors: Sequence[SummaryStats]) -> Any:
    """Return the figure of each level's effect against its factor's first level, with intervals."""
    rows = [(factor, contrast) for factor in factors for contrast in factor["contrasts"]]
    axes = _axes(
        "What the factors change in the reveal rate, with 95 % intervals",
        "change against the factor's first level (percentage points)",
        "",
        width=7.2,
        height=1.4 + 0.4 * len(rows),
    )
    for y, (_, contrast) in enumerate(rows):
        effect = contrast["revealed"]
        if effect["interval"] is not None:
            axes.hlines(y, *(100 * bound for bound in effect["interval"]), color=PALETTE[0], linewidth=2)
        axes.plot(100 * effect["mean"], y, "o", color=PALETTE[0])
    axes.axvline(0, color="#777777", linewidth=0.8)
    labels = [f"{factor['name']}: {_short(c['level'])} against {_short(c['baseline'])}" for factor, c in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    return axes.figure


def _curve_style(number: int) -> dict[str, Any]:
    colour = PALETTE[number % len(PALETTE)]
    return {"color": colour, "linestyle": DASHES[number // len(PALETTE) % len(DASHES)], "linewidth": 1.5}


def _wrapped(name: str, width: int = 22) -> str:
    """Return a model's name wrapped, with $ escaped, which matplotlib would parse as mathematics."""
    from textwrap import wrap

    return "\n".join(wrap(name, width)).replace("$", r"\$")


def _short(level: str) -> str:
    return (level if len(level) <= 28 else f"{level[:25]}...").replace("$", r"\$")
