"""A judge's rates, corrected by its accuracy on the labelled sample."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.game.judge import (
    complete_sides,
    corrected_rate,
    judge_all,
    judge_messages,
    judge_player,
    read_labels,
)
from r2v.llm.types import Reply, Request

from .sample_game import GAME, SECRETS
from .scripted_models import Distant, reply


class Reader:
    """A judge with given verdicts."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def reply(self, request: Request) -> Reply:
        return reply(self._text)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"revealed": true}', True),
        ('Sure: {"revealed" : false}', False),
        ("yes", None),
        ('{"revealed": true} or {"revealed": false}', None),
    ],
)
def test_a_verdict_is_read_or_it_is_none(text: str, verdict: bool | None) -> None:
    assert asyncio.run(judge_player(Reader(text), GAME[0], 0, "run")) is verdict


def test_the_judge_is_told_the_secret_and_who_is_who() -> None:
    asked = json.loads(judge_messages(GAME[0], 1)[1].content)
    assert asked["secret_of_PLAYER"] == SECRETS["D"]
    assert [turn["speaker"] for turn in asked["conversation"]] == ["OTHER", "PLAYER"] * 2


def test_incomplete_conversations_are_not_judged() -> None:
    assert len(complete_sides(GAME)) == 22


def test_the_corrected_rate_by_hand() -> None:
    """Of 4 labelled reveals 3 are found, of 5 kept secrets 1 is called a reveal; 50 of 100 cases in all."""
    verdicts: dict[tuple[str, str], bool | None] = {(f"c{k}", "1"): k < 50 for k in range(100)}
    verdicts[("broken", "1")] = None
    labels = {
        ("c0", "1"): True,
        ("c1", "1"): True,
        ("c2", "1"): True,
        ("c60", "1"): True,
        ("c3", "1"): False,
        **{(f"c{k}", "1"): False for k in range(70, 74)},
        ("broken", "1"): True,
    }
    found = corrected_rate(verdicts, labels)
    assert (found["judged"], found["unread"], found["apparent"]) == (100, 1, 0.5)
    assert (found["sensitivity"]["value"], found["sensitivity"]["n"]) == (0.75, 4)
    assert (found["specificity"]["value"], found["specificity"]["n"]) == (pytest.approx(0.8), 5)
    assert found["corrected"] == pytest.approx((0.5 + 0.8 - 1) / (0.75 + 0.8 - 1))


def test_no_sample_no_figure() -> None:
    with pytest.raises(InputError, match="1 revealed and 0 kept"):
        corrected_rate({("c", "1"): True}, {("c", "1"): True})


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"id": "c", "agent": "1", "revealed": true}\n\n{"id": "c", "agent": "2", "revealed": false}\n')
    assert read_labels(path) == {("c", "1"): True, ("c", "2"): False}
    for text in (
        '{"id": "c"}',
        "not json",
        '{"id": "c", "agent": "1", "revealed": 1}',
        '{"id": "c", "agent": "1", "revealed": true}\n{"id": "c", "agent": "1", "revealed": false}',
    ):
        path.write_text(text)
        with pytest.raises(InputError, match="labels.jsonl:"):
            read_labels(path)


def test_all_cases_are_asked_in_waves_and_no_answer_is_no_verdict() -> None:
    def speak(request: Request) -> str:
        return '{"revealed": true}' if "It is" in request.messages[1].content else "hm"

    backend = Distant(speak, fails=lambda request: "refused" if request.key[2] == "conversation_1" else None)
    verdicts = judge_all(GAME, backend, "run")
    assert len(verdicts) == 22 and len(backend.waves) == 1
    assert verdicts["conversation_0", "A"] is True
    assert verdicts["conversation_2", "A"] is None, "could not be read"
    assert verdicts["conversation_1", "B"] is None, "was not answered"
