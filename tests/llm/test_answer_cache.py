"""The answer cache keeps digests and answers, and is bounded in size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from r2v.llm.answer_cache import AnswerCache, chat_cache_key, digest_of, score_cache_key
from r2v.llm.types import Request, ScoreRequest
from r2v.wire.message import Message

TALK = (Message(role="user", content="open it"), Message(role="tool", content="a page"))
GREEDY = Request(messages=TALK, key=(1, "t-1", 0, "slm"), temperature=0.0)


def test_what_was_kept_longest_goes_first() -> None:
    cache = AnswerCache(2)
    for number in range(4):
        cache[number] = str(number)
    cache[2] = "again"
    assert dict(cache) == {2: "again", 3: "3"}


@pytest.mark.parametrize(
    "other",
    [
        {"messages": (*TALK, Message(role="assistant", content="go"))},
        {"messages": tuple(reversed(TALK))},
        {"messages": (replace(TALK[0], role="system"), TALK[1])},
        {"messages": (Message(role="user", content="open it\ntool 6\na page"),)},
        {"num_samples": 2},
        {"max_tokens": 7},
        {"top_p": 0.5},
    ],
)
def test_another_question_has_another_key(other: dict[str, Any]) -> None:
    assert chat_cache_key(replace(GREEDY, **other)) != chat_cache_key(GREEDY)


def test_a_greedy_reply_is_the_same_for_every_key_and_a_sampled_one_is_not() -> None:
    sampled, elsewhere = replace(GREEDY, temperature=0.7), (2, "t-1", 0, "slm")
    assert chat_cache_key(replace(GREEDY, key=elsewhere)) == chat_cache_key(GREEDY)
    assert chat_cache_key(replace(sampled, key=elsewhere)) != chat_cache_key(sampled)


def test_a_score_belongs_to_a_context_and_an_action() -> None:
    request = ScoreRequest(messages=TALK, action="go")
    assert score_cache_key(request) == score_cache_key(replace(request))
    assert len({score_cache_key(request), score_cache_key(replace(request, action="stop")), digest_of(TALK)}) == 3


def test_a_key_holds_no_page() -> None:
    key = chat_cache_key(replace(GREEDY, messages=(Message(role="tool", content="x" * 100_000),)))
    assert isinstance(key, bytes) and len(key) == 16
    assert digest_of((Message(role="tool", content="half of a pair \ud800"),))
