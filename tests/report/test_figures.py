"""A figure shows the values of its CSV file, which are those of the tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from r2v.config.methods import METHODS
from r2v.report.figures import draw, look, short
from r2v.report.series import Series, series
from r2v.report.sources import read_sources

SHOWN = {  # the columns that are drawn, (x, y); the position of a name is no number
    "frontier": ("usd_per_episode", "success"),
    "success": ("success", None),
    "ranking": ("rank", "share_right"),
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
    panels = draw(name, series(read_sources(micro_results))[name])
    drawn = {
        (float(px), None if y is None else float(py))
        for figure in panels.values()
        for axes in figure.axes
        for line in axes.get_lines()
        for px, py in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert wanted <= drawn


def frontier_of(*prices: float) -> Series:
    names = ("slm_only", "entropy_router", "r2v", "llm_only")
    rows = [
        {
            "condition": "noisy", "method": name, "operating_point": "main", "usd_per_episode": usd, "success": 0.5,
            "success_low": 0.4, "success_high": 0.6,
        }
        for name, usd in zip(names, prices, strict=False)
    ]  # fmt: skip
    return Series(rows=rows, source="made")


@pytest.mark.parametrize(
    ("prices", "ticks"),
    [
        ((0, 0.001, 0.002, 0.1), ["$0", "$0.001", "$0.01", "$0.1"]),
        ((0, 0, 0, 0), ["$0"]),
        ((0.002,), ["$0.002"]),
        ((3e-6, 2e-5, 1e-4, 0.5), ["$1e-5", "$0.001", "$0.1"]),
    ],
)
def test_a_method_that_costs_nothing_stands_at_zero_dollars(prices: tuple[float, ...], ticks: list[str]) -> None:
    [axes] = draw("frontier", frontier_of(*prices))["noisy"].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ticks
    low, high = axes.get_xlim()
    assert all(low < price < high for price in prices)
    drawn = [text for text in axes.texts if text.get_text()]
    assert {text.get_text() for text in drawn} == {"slm_only", "entropy", "llm_only", "r2v"} or len(prices) == 1
    heights = [text.get_position()[1] for text in drawn]
    assert all(above - below > 0.03 for below, above in zip(heights, heights[1:], strict=False)), "no two names overlap"


def test_only_a_score_that_is_a_probability_is_drawn_against_the_diagonal(micro_results: Path) -> None:
    data = series(read_sources(micro_results))
    assert {row["method"] for row in data["reliability"].rows} == {"r2v"}
    assert {row["method"] for row in data["ranking"].rows} > {"r2v", "entropy_router", "random_router"}


def test_every_router_is_in_the_figure_by_perturbation(micro_results: Path) -> None:
    data = series(read_sources(micro_results))["categories"]
    methods = {short(row["method"]) for row in data.rows}
    assert {"verifier", "random", "r2v"} <= methods
    for figure in draw("categories", data).values():
        assert {label.get_text() for label in figure.axes[0].get_yticklabels()} == methods


def test_the_csv_says_what_the_main_table_says(micro_results: Path, micro_report: Path) -> None:
    with (micro_results / "structured_results" / "main_table.csv").open(newline="") as file:
        table = {(row["condition"], row["method"]): float(row["success_rate"]) for row in csv.DictReader(file)}
    with (micro_report / "data" / "success.csv").open(newline="") as file:
        assert {(row["condition"], row["method"]): float(row["success"]) for row in csv.DictReader(file)} == table


def test_no_two_methods_of_one_table_look_alike() -> None:
    looks = [tuple(look(name).values()) for name in METHODS]
    assert len(set(looks)) == len(METHODS)
