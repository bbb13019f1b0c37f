"""CSV files of docs/results and the plot of the baselines, from the tables of `python -m benchmarks.tables`.

A study prints several Markdown tables in sequence. Each goes into the file of its kind, with the study in the first
column, so that one file compares studies. A cell `0.810 [0.771, 0.848]` becomes three columns: the figure, and
the lower and the upper end of its interval.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path

from benchmarks.rivals import is_part
from r2v.config.methods import OURS
from r2v.plotting import MARKERS, PALETTE, STYLE, save

FOLDER = Path("docs/results")
PLOT = Path("docs/images/baselines")
MAIN_STUDY = {"desk, noisy": "Noisy", "desk, shift": "Shift", "desk, clean": "Clean"}
"""Studies in the plot, with their panel's title."""

Table = list[dict[str, str]]
_PART = re.compile(r"^- (.+): earns its place: (\w+), (\S+ \[.*?\]) APGR, seeds: (.+)$")
_NUMBER = r"[+-]?\d*\.?\d+"
_FIGURE = re.compile(
    rf"(?P<value>{_NUMBER})(?: \[(?P<low>{_NUMBER})(?:, (?P<high>{_NUMBER}))?\])?"
    r"(?: of (?P<of>\d+))?(?: for (?P<mUSD>[\d.]+))?"
)
"""A figure, the ends of its interval, the number of cases it is of, and the dollars it was had for."""


def markdown_tables(lines: Iterable[str]) -> Iterator[Table]:
    """Yield each Markdown table among the lines, as rows by column; equal headings name the column before them."""
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|\n").split("|")])
        elif rows:
            heads, _, *body = rows
            names = [f"{head} ({heads[at - 1]})" if heads.count(head) > 1 else head for at, head in enumerate(heads)]
            yield [dict(zip(names, cells, strict=True)) for cells in body]
            rows = []


def aligned_table(text: str) -> Table:
    """Parse a table whose columns are aligned by spaces and begin at the words of its first line."""
    head, *body = text.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    ends = [*starts[1:], None]
    rows = [[line[start:end].strip() for start, end in zip(starts, ends, strict=True)] for line in (head, *body)]
    return [dict(zip(rows[0], cells, strict=True)) for cells in rows[1:]]


def parts_table(lines: Iterable[str]) -> Table:
    """Return the gain of each part of r2v over its replacement, from a study's list of parts."""
    return [
        {"part": part, "earns its place": verdict, "APGR": lead, "seeds ahead": seeds}
        for line in lines
        for part, verdict, lead, seeds in _PART.findall(line)
    ]


def csv_text(tables: Mapping[str, Table]) -> str:
    """Return the CSV of one kind of table over several studies. The first column is the study, absent for only one."""
    several = len(tables) > 1
    rows = [{"study": study, **row} if several else row for study, table in tables.items() for row in _split(table)]
    columns: list[str] = []
    for row in rows:  # a column of only some studies comes after its predecessor in them
        for at, name in enumerate(row):
            if name not in columns:
                columns.insert(columns.index([*row][at - 1]) + 1 if at else 0, name)
    text = StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _split(table: Table) -> Table:
    """Return the rows with one column for each part of a figure, if all figures of the column have the same form."""
    matches = {
        name: [_FIGURE.fullmatch(row[name]) for row in table if row[name]] for name in (table[0] if table else ())
    }
    rows: Table = []
    for row in table:
        cells = {}
        for name, value in row.items():
            parts = {part for match in matches[name] if match for part, text in match.groupdict().items() if text}
            if None in matches[name] or parts <= {"value"}:
                cells[name] = value
                continue
            figure = _FIGURE.fullmatch(value)
            cells |= {
                name if part == "value" else f"{name}, {part}": (figure[part] or "") if figure else ""
                for part in _FIGURE.groupindex
                if part in parts
            }
        rows.append(cells)
    return rows


def plot(folder: Path = FOLDER, path: Path = PLOT) -> Path:
    """Write the plot of `folder`/methods.csv as `path`.svg: APGR of each method of the main study, three panels."""
    import matplotlib

    with (folder / "methods.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["study"] in MAIN_STUDY]
    noisy = [row for row in rows if row["study"] == next(iter(MAIN_STUDY))]
    order = [row["method"] for row in noisy if not is_part(row["method"])][::-1]
    with matplotlib.rc_context({**STYLE, "figure.figsize": (7.5, 4.6)}):
        import matplotlib.pyplot as plt

        figure, panels = plt.subplots(1, len(MAIN_STUDY), sharex=True, sharey=True, layout="constrained")
        for axes, (study, title) in zip(panels, MAIN_STUDY.items(), strict=True):
            for row in rows:
                if row["study"] == study and row["method"] in order:
                    low, mean, high = (float(row[name]) for name in ("APGR, low", "APGR", "APGR, high"))
                    colour, row_at = PALETTE[row["method"] != OURS], order.index(row["method"])
                    axes.plot([low, high], [row_at, row_at], color=colour, linewidth=1.5)
                    axes.plot(mean, row_at, MARKERS[row["method"] != OURS], color=colour, markersize=4)
            axes.set(title=title, xlabel="APGR")
        panels[0].set_yticks(range(len(order)), order)
        written = save(figure, path, "svg")
        plt.close(figure)
    return written
