"""Plotting: style and file formats of all figures.

    with matplotlib.rc_context(STYLE):
        axes = panels("Success", 2)[0]
        save(axes.figure, folder / "success", ["pdf", "svg"])

Colours are distinguishable for colour-blind readers, and each comes with a dash or a marker, for print. Files contain
no time and no path: the same numbers give the same bytes with the same matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from r2v.storage.files import replacing

FigureFormat = Literal["pdf", "png", "svg"]

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's, with grey for black."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, LINE = "#222222", "#e5e5e5"
"""Colours of text and axes, and of grids."""
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "text.parse_math": False,  # names are text, whatever signs they hold
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "r2v",
    "savefig.dpi": 200,
}
_NO_DATE: dict[FigureFormat, dict[str, None]] = {
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
    "svg": {"Date": None},
}


def save(figure: Any, path: Path, form: FigureFormat) -> Path:
    """Write a figure to `path` with the format's suffix and return the file."""
    whole = path.with_name(f"{path.name}.{form}")
    with replacing(whole) as file:
        figure.savefig(file, format=form, metadata=_NO_DATE[form])
    return whole


def svg_text(figure: Any) -> str:
    """Return a figure as SVG text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=_NO_DATE["svg"])
    return text.getvalue()


def panels(titles: Iterable[str], *, width: float, height: float, columns: int = 3, share_y: bool = True) -> list[Any]:
    """Return the axes of a new figure, one for each title, at most `columns` in a row. `width`, `height`: of each, in
    inches."""
    from matplotlib.figure import Figure

    names = list(titles)
    across = min(columns, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, sharey=share_y).flat)
    for panel, name in zip(axes, names, strict=False):
        panel.set_title(name)
    for panel in axes[len(names) :]:
        panel.remove()
    return axes[: len(names)]


def legend_below(figure: Any, axes: Any, columns: int = 4) -> None:
    """Add the legend of the given axes below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))
