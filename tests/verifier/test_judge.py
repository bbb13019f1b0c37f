from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from r2v.llm.types import Reply, Request, Sample, ScoreRequest, Usage
from r2v.verifier.judge import Judge, parse_score
from r2v.wire.message import Message

QUESTIONS = [ScoreRequest(messages=(Message(role="user", content="goal\u2028"),), action=action) for action in "abc"]
ANSWERS = {"a": '{"score": 7}', "b": "I cannot say.", "c": 'Sure:\n{"score": 0}'}


class Scripted:
    """Answers by the proposed action and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def reply(self, request: Request) -> Reply:
        self.calls += 1
        await asyncio.sleep(0)
        action = request.messages[-1].content[-3]
        return Reply(samples=(Sample(text=ANSWERS[action]),), usage=Usage(), model="m")


def judge_all(model: Scripted, cache: Path, name: str = "m", times: int = 1) -> list[float | None]:
    async def ask() -> list[float | None]:
        judge = Judge(model, name, cache)
        return await asyncio.gather(*(judge(question) for question in QUESTIONS * times))

    return asyncio.run(ask())


def test_the_second_run_makes_no_call_and_no_opinion_stays_none(tmp_path: Path) -> None:
    first, second = Scripted(), Scripted()
    assert judge_all(first, tmp_path / "judge.jsonl", times=2) == [0.7, None, 0.0] * 2
    assert first.calls == 3, "equal questions in flight are asked once"
    assert judge_all(second, tmp_path / "judge.jsonl") == [0.7, None, 0.0] and second.calls == 0


def test_another_judge_is_asked_anew(tmp_path: Path) -> None:
    model = Scripted()
    for name in ("m", "n"):
        judge_all(model, tmp_path / "judge.jsonl", name)
    assert model.calls == 6


def test_a_torn_last_line_costs_one_question(tmp_path: Path) -> None:
    cache, model = tmp_path / "judge.jsonl", Scripted()
    judge_all(model, cache)
    cache.write_bytes(cache.read_bytes()[:-5])
    assert judge_all(model, cache) == [0.7, None, 0.0] and model.calls == 4
    assert judge_all(model, cache) == [0.7, None, 0.0] and model.calls == 4


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 10}', 1.0),
        ('{"score":2.5}', 0.25),
        ('{"score": 11}', None),
        ("7", None),
        ("", None),
        ('{"score": 3} or {"score": 4}', None),
        ('{"score": -1}', None),
        ('{"score": null}', None),
    ],
)
def test_replies(reply: str, score: float | None) -> None:
    assert parse_score(reply) == score
