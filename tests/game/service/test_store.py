"""Results on disk: raw and analysis apart, the one a function of the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.game.play.records import Interaction
from r2v.game.play.rules import GameMode, Rules
from r2v.game.service.store import load, reanalyse, write_analysis

from ..sample_game import AGENTS, GAME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    setup = {
        "game_mode": "retained",
        "rules": {"payoffs": {}, "diversity_points": 3.0},
        "agents": [{"id": agent.id, "name": agent.name, "model": agent.model} for agent in AGENTS],
    }
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "job.json").write_text(json.dumps(setup))
    (tmp_path / "raw" / "interactions.json").write_text(json.dumps([one.to_json() for one in GAME]))
    return tmp_path


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / "analysis").iterdir())}


def test_raw_results_come_back_as_they_were(folder: Path) -> None:
    interactions, mode, rules, agents = load(folder)
    assert (interactions, mode, agents) == (GAME, GameMode.RETAINED, AGENTS)
    assert rules == Rules(diversity_points=3.0)


def test_the_analysis_is_made_again_from_raw_alone_with_the_same_bytes(folder: Path) -> None:
    write_analysis(folder, *load(folder))
    before = files(folder)
    for path in (folder / "analysis").iterdir():
        path.unlink()
    reanalyse(folder)
    assert files(folder) == before
    assert set(before) == {
        "analysis.json",
        "report.txt",
        "agents.csv",
        "models.csv",
        "overall.csv",
        "scores.csv",
        "first_mover.csv",
        "who_cracks.csv",
        "time_to_reveal.csv",
        "leaked_bits.csv",
        "factors.csv",
    }
    assert {path.name for path in (folder / "raw").iterdir()} == {"job.json", "interactions.json"}


def test_tables_say_what_the_analysis_says(folder: Path) -> None:
    reanalyse(folder)
    head, *rows = (line.split(",") for line in files(folder)["agents.csv"].splitlines())
    by_id = {row[0]: dict(zip(head, row, strict=False)) for row in rows}
    assert {agent: row["revealed"] for agent, row in by_id.items()} == {"A": "3", "B": "4", "C": "3", "D": "1"}
    assert {agent: row["incomplete"] for agent, row in by_id.items()} == {"A": "1", "B": "1", "C": "0", "D": "0"}
    text = files(folder)["report.txt"]
    assert "11 interactions in retained mode, 1 incomplete" in text
    assert "1 x EnvironmentFault: the server is on fire" in text
    assert "secrets revealed   11 (50.0 %" in text and "1 sessions were cut short" in text


def test_nothing_played_to_its_end_can_still_be_filed(tmp_path: Path) -> None:
    write_analysis(tmp_path, [one for one in GAME if one.incomplete], GameMode.STANDARD, Rules(), AGENTS)
    assert "0 interactions in standard mode, 1 incomplete" in files(tmp_path)["report.txt"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("interactions.json", None, "no results of a finished job"),
        ("interactions.json", "[{", "not the raw results"),
        ("interactions.json", '[{"id": "x"}]', "not an interaction"),
        ("job.json", "{}", "not the raw results"),
    ],
)
def test_bad_raw_results(folder: Path, name: str, text: str | None, says: str) -> None:
    path = folder / "raw" / name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=says):
        load(folder)


def test_an_interaction_survives_json() -> None:
    for one in GAME:
        assert Interaction.from_json(json.loads(json.dumps(one.to_json()))) == one
