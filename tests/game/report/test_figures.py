"""Figures: every one in every format, with title and units, reproducible to the byte, and with the right contents."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.cli.game.options import FIGURE_FORMATS
from r2v.game.play.rules import GameMode, Rules
from r2v.game.report.figures import make_figures, write_figures
from r2v.game.statistics.analysis import analyse
from r2v.game.statistics.summary import SummaryStats

from ..sample_game import AGENTS, GAME, TABLE, talk

NAMES = ("rates", "leaked_bits", "time_to_reveal", "first_mover", "factors")


@pytest.fixture(scope="module")
def analysis() -> SummaryStats:
    """Return six replicates of the hand-made game; the agents differ in a factor of their own besides the model."""
    game = [
        talk(12 * replicate + number, *row, replicate=replicate)
        for replicate in range(6)
        for number, row in enumerate(TABLE)
    ]
    agents = [
        replace(agent, levels={"model": agent.model, "persona": "<none>" if agent.id in "AC" else "a $5 & more"})
        for agent in AGENTS
    ]
    return analyse(game, GameMode.STANDARD, Rules(), agents)


@pytest.fixture(scope="module")
def written(analysis: SummaryStats, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_figures(analysis, tmp_path_factory.mktemp("report") / "figures", FIGURE_FORMATS)


def test_every_figure_in_every_format(written: list[Path]) -> None:
    assert {path.name for path in written} == {f"{name}.{form}" for name in NAMES for form in FIGURE_FORMATS}
    magic = {".pdf": b"%PDF-", ".png": b"\x89PNG", ".svg": b"<?xml"}
    assert all(path.read_bytes().startswith(magic[path.suffix]) for path in written)
    for path in written:
        if path.suffix == ".svg":
            texts = " ".join(text for text in ET.fromstring(path.read_text()).itertext() if text.strip())
            assert "95 %" in texts or path.stem == "first_mover", path
            assert "%" in texts or "bits" in texts or "points" in texts, f"{path}: no unit"


def test_the_same_analysis_gives_the_same_bytes(analysis: SummaryStats, written: list[Path], tmp_path: Path) -> None:
    again = write_figures(analysis, tmp_path / "again", ("svg", "pdf"))
    first = {path.name: path.read_bytes() for path in written if path.suffix in (".svg", ".pdf")}
    assert first == {path.name: path.read_bytes() for path in again}


def test_what_is_drawn_is_what_the_analysis_says(analysis: SummaryStats) -> None:
    figures = make_figures(analysis)
    assert all(
        axes.get_title(loc="left") for figure in figures.values() for axes in figure.axes if axes.get_label() == ""
    )
    bars = figures["rates"].axes[0].containers[0]
    assert [bar.get_height() for bar in bars] == [row["revealed"]["percent"] for row in analysis["models"]]
    curve = figures["time_to_reveal"].axes[0].lines[0]
    kept = [100 * point["kept"] for point in analysis["time_to_reveal"]["models"][0]["curve"]]
    assert list(curve.get_ydata()) == [*kept, kept[-1]]
    dots = [line.get_xdata()[0] for line in figures["factors"].axes[0].lines if line.get_marker() == "o"]
    contrasts = [contrast for factor in analysis["factors"] for contrast in factor["contrasts"]]
    assert dots == [100 * contrast["revealed"]["mean"] for contrast in contrasts]


def test_nothing_played_draws_nothing() -> None:
    nothing = analyse([one for one in GAME if one.incomplete], GameMode.STANDARD, Rules(), AGENTS)
    assert make_figures(nothing) == {}
