"""Labelling by hand: the prompts, the record, resuming, and the figures computed from the labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.game.labels import CLAIM_SENTENCES, check_detectors, draw_sides, read_labelled_sides

from ...game.sample_game import AGENTS, GAME, SECRETS


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    setup = {
        "game_mode": "standard",
        "rules": {"payoffs": {}},
        "agents": [{"id": agent.id, "name": agent.name, "model": agent.model} for agent in AGENTS],
    }
    raw = tmp_path / "job" / "raw"
    raw.mkdir(parents=True)
    (raw / "job.json").write_text(json.dumps(setup))
    (raw / "interactions.json").write_text(json.dumps([one.to_json() for one in GAME]))
    return tmp_path / "job"


def typing(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Type these answers, and then end the input."""
    waiting: Iterator[str] = iter(answers)

    def answered(question: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answered)


def test_a_sample_is_shown_recorded_and_gone_on_with(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(monkeypatch, "y", "blue elephant 42 | Ash ", "perhaps", "n", "", "s")
    assert main(["game", "label", "job", "--sample", "6"]) == 0
    shown = capsys.readouterr().out
    assert "6 to label" in shown and "one of y, n, s, q" in shown and "2 labelled in labels.jsonl" in shown
    assert "incomplete" not in shown, "what has no end is not shown"
    first, second = read_labelled_sides(Path("labels.jsonl"))
    assert (first.revealed, first.claims) == (True, ("blue elephant 42", "Ash"))
    assert (second.revealed, second.claims) == (False, ())
    assert first.secret == SECRETS[first.agent] and len(first.messages) == 2
    typing(monkeypatch, "n", "", "q")
    assert main(["game", "label", "job", "--sample", "6"]) == 0
    assert "4 to label" in capsys.readouterr().out
    assert read_labelled_sides(Path("labels.jsonl"))[:2] == [first, second]
    assert len({(side.id, side.agent) for side in read_labelled_sides(Path("labels.jsonl"))}) == 3


def test_the_sample_is_keyed() -> None:
    one, again, other = (draw_sides(GAME, 8, seed) for seed in (1, 1, 2))
    assert one == again != other and len(one) == 8
    assert len(draw_sides(GAME, 1000, 0)) == 2 * 11, "both sides of every complete conversation"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", 4, "holds no labels"),
        ("{", 3, "labels.jsonl:1: not a row of `r2v game label`"),
        ('{"id": "c", "agent": "1"}', 3, "KeyError('secret')"),
        ('{"id":"c","agent":"1","secret":"s","messages":["m"],"revealed":"no","claims":[]}', 3, "true or false"),
    ],
)
def test_bad_labels_are_one_line(
    text: str,
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.jsonl").write_text(text)
    assert main(["game", "check", "labels.jsonl"]) == code
    err = capsys.readouterr().err
    assert says in err and len(err.strip().splitlines()) == 1


def test_the_sentences_that_come_along(capsys: pytest.CaptureFixture[str]) -> None:
    """Recall and precision of claims on the bundled sentences, written before their detector; the old one found 11 of
    55."""
    assert main(["game", "check", "--show"]) == 0
    printed = capsys.readouterr().out
    assert "115 labelled sides of held_out.jsonl" in printed
    found = check_detectors(read_labelled_sides(CLAIM_SENTENCES))
    assert found.claims_found.total == 55 and found.claims_found.count / 55 >= 0.9
    assert found.claims_right.count / found.claims_right.total >= 0.9
    assert found.reveals_found.count == found.reveals_found.total == 15
    assert found.kept_right.count / found.kept_right.total >= 0.98
