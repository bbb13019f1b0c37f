"""What a figure shows is what its CSV file says, and the CSV file is what the tables say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from r2v.config.methods import METHODS
from r2v.report.figures import draw, look
from r2v.report.series import series
from r2v.report.sources import read_sources

SHOWN = {  # the columns that are drawn, (x, y); the place of a name is no number
    "frontier": ("usd_per_episode", "success"),
    "success": ("success", None),
    "reliability": ("mean_score", "share_right"),
    "ablations": ("difference", None),
    "losses": ("step", "loss"),
}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_every_number_of_the_csv_is_drawn(name: str, micro_results: Path, micro_report: Path) -> None:
    with (micro_report / "data" / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    x, y = SHOWN[name]
    wanted = {(float(row[x]), None if y is None else float(row[y])) for row in rows}
    figure = draw(name, series(read_sources(micro_results))[name])
    drawn = {
        (float(px), None if y is None else float(py))
        for axes in figure.axes
        for line in axes.get_lines()
        for px, py in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert wanted <= drawn


def test_the_csv_says_what_the_main_table_says(micro_results: Path, micro_report: Path) -> None:
    with (micro_results / "structured_results" / "main_table.csv").open(newline="") as file:
        table = {(row["condition"], row["method"]): float(row["success_rate"]) for row in csv.DictReader(file)}
    with (micro_report / "data" / "success.csv").open(newline="") as file:
        assert {(row["condition"], row["method"]): float(row["success"]) for row in csv.DictReader(file)} == table


def test_no_two_methods_of_one_table_look_alike() -> None:
    looks = [tuple(look(name).values()) for name in METHODS]
    assert len(set(looks)) == len(METHODS)
