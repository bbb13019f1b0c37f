"""Plots of the summary statistics as SVG: bars with their intervals, survival curves, and the ordered matrix."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from r2v.game.statistics.summary import SummaryStats

_INK, _FAINT = "#333333", "#dddddd"
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_GLYPH = 6.6
"""Pixels of a letter, on average: rows and columns are as wide as the longest name."""
_EVENTS = ("revealed", "obtained", "optimal")


def svg_plots(analysis: SummaryStats) -> dict[str, str]:
    """Every SVG file by name."""
    return {
        "rates.svg": rate_bars(analysis["agents"]),
        "first_mover.svg": first_mover_matrix(analysis["first_mover"]["matrix"]),
        "time_to_reveal.svg": survival_curves(analysis["time_to_reveal"]["models"]),
    }


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
                'font-family="sans-serif" font-size="12">',
                f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
                *parts,
                "</svg>",
            ]
        )
        + "\n"
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{_INK}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _INK) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}"/>'


def _percent_axis(left: float, right: float, top: float, bottom: float) -> list[str]:
    parts = []
    for percent in (0, 25, 50, 75, 100):
        y = bottom - (bottom - top) * percent / 100
        parts += [_line(left, y, right, y, _FAINT), _text(left - 6, y + 4, f"{percent} %", "end")]
    return parts


def rate_bars(agents: Sequence[SummaryStats]) -> str:
    """Revealed, obtained and optimal per agent, with Wilson's intervals."""
    longest = max((len(row["name"]) for row in agents), default=0) * _GLYPH
    left, top, bottom, group = 50.0, 30.0, 230.0, max(110.0, longest + 50)
    right = left + group * max(1, len(agents))
    parts = _percent_axis(left, right, top, bottom)
    for at, event in enumerate(_EVENTS):
        x = left + 95 * at
        parts += [f'<rect x="{x:g}" y="8" width="10" height="10" fill="{_COLOURS[at]}"/>', _text(x + 14, 17, event)]
    for number, row in enumerate(agents):
        parts.append(
            _text(left + group * (number + 0.5), bottom + 18, f"{row['name']} (n={row['interactions']})", "middle")
        )
        for at, event in enumerate(_EVENTS):
            if row[event]["percent"] is None:
                continue
            x = left + group * number + 14 + 28 * at
            height, (low, high) = (bottom - top) * row[event]["percent"] / 100, row[event]["wilson"]
            ends = [bottom - (bottom - top) * bound / 100 for bound in (low, high)]
            parts += [
                f'<rect x="{x:g}" y="{bottom - height:g}" width="24" height="{height:g}" fill="{_COLOURS[at]}"/>',
                _line(x + 12, ends[0], x + 12, ends[1]),
            ]
    return _svg(right + 20, bottom + 30, parts)


def survival_curves(models: Sequence[SummaryStats]) -> str:
    """Kaplan-Meier curves: the share of secrets still kept after so many own messages."""
    left, top, bottom, step = 50.0, 20.0, 220.0, 60.0
    last = max([point["message"] for row in models for point in row["curve"]], default=0) + 1
    right = left + step * last
    parts = _percent_axis(left, right, top, bottom)
    parts += [_text(left + step * message, bottom + 16, str(message), "middle") for message in range(last + 1)]
    for number, row in enumerate(models):
        colour, x, y, path = _COLOURS[number % len(_COLOURS)], left, top, f"M {left:g} {top:g}"
        for point in row["curve"][1:]:
            x, y = left + step * point["message"], bottom - (bottom - top) * point["kept"]
            path += f" H {x:g} V {y:g}"
        parts += [
            f'<path d="{path} H {right:g}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<rect x="{right + 12:g}" y="{top + 18 * number:g}" width="10" height="10" fill="{colour}"/>',
            _text(right + 26, top + 9 + 18 * number, row["name"]),
        ]
    parts.append(_text((left + right) / 2, bottom + 34, "own messages until the secret is given away", "middle"))
    return _svg(right + 240, bottom + 46, parts)


def first_mover_matrix(cells: Sequence[SummaryStats]) -> str:
    """How often the opener (row) and the follower (column) gave their secrets away."""
    names = sorted({cell[side] for cell in cells for side in ("first", "second")})
    longest = max(map(len, names), default=0) * _GLYPH
    left, top, height, width = longest + 16, 60.0, 110.0, max(110.0, longest + 16)
    parts = [_text(left, 20, "opener's reveals / follower's reveals, by opener (row) and follower (column)")]
    for number, name in enumerate(names):
        parts += [
            _text(left - 8, top + height * (number + 0.5), name, "end"),
            _text(left + width * (number + 0.5), top - 8, name, "middle"),
        ]
    for cell in cells:
        x, y = left + width * names.index(cell["second"]), top + height * names.index(cell["first"])
        first, second = cell["first_revealed"]["percent"], cell["second_revealed"]["percent"]
        shade = (first + second) / 200
        parts += [
            f'<rect x="{x:g}" y="{y:g}" width="{width - 4:g}" height="{height - 4:g}" fill="{_COLOURS[0]}" '
            f'fill-opacity="{0.1 + 0.6 * shade:.3f}"/>',
            _text(x + width / 2 - 2, y + height / 2, f"{first:.0f} % / {second:.0f} %", "middle"),
            _text(x + width / 2 - 2, y + height / 2 + 18, f"n={cell['interactions']}", "middle"),
        ]
    return _svg(max(left + 460, left + width * len(names) + 20), top + height * max(1, len(names)) + 20, parts)
