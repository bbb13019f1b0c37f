"""Requests to a server and the reading of its answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from r2v.llm.engines.wire import NotKeyed, Shortened, completion_body, read_completion, reason_of
from r2v.llm.local.decode import Draw
from r2v.llm.types import Request

ENDS = frozenset({2})
DRAW = Draw(prompt=0, key=(1, "t", 4, 0), temperature=0.7, top_p=0.9, max_tokens=8)


def answered(tokens: list[int], figures: list[dict[str, float]] | None = None) -> dict[str, Any]:
    alternatives = figures or [{f"token_id:{token}": 1.25, "token_id:49": -0.5} for token in tokens]
    return {"choices": [{"token_ids": tokens, "logprobs": {"top_logprobs": alternatives}}]}


def test_a_completion_is_asked_for_by_token_ids_and_key() -> None:
    request = Request(messages=(), key=(1, "t", 4), temperature=0.7, top_p=0.9, max_tokens=8)
    assert Draw.of(request, 0) == DRAW
    body = completion_body("base", [5, 6], DRAW, ENDS)
    assert (body["prompt"], body["stop_token_ids"], body["max_tokens"]) == ([5, 6], [2], 8)
    assert body["temperature"] == 0 and "seed" not in body
    assert json.loads(body["vllm_xargs"]["r2v_key"]) == [1, "t", 4, 0]
    assert (body["vllm_xargs"]["r2v_temperature"], body["vllm_xargs"]["r2v_top_p"]) == (0.7, 0.9)


def test_tokens_and_figures_come_back() -> None:
    drawn = read_completion(answered([7, 2]), DRAW, ENDS)
    assert (drawn.tokens, drawn.ended) == ([7, 2], True)
    assert drawn.logprobs == [-0.5, -0.5] and drawn.entropies == [0.25, 0.25]


def test_figures_that_nobody_reads_are_not_asked_for() -> None:
    unread = replace(DRAW, logprobs=False)
    assert completion_body("base", [5], unread, ENDS) == completion_body("base", [5], DRAW, ENDS) | {"logprobs": None}
    drawn = read_completion({"choices": [{"token_ids": [7, 2], "logprobs": None}]}, unread, ENDS)
    assert (drawn.tokens, drawn.logprobs, drawn.entropies, drawn.ended) == ([7, 2], [], [], True)


def test_a_reply_of_all_the_tokens_asked_for_is_whole() -> None:
    assert not read_completion(answered([7, 8]), replace(DRAW, max_tokens=2), ENDS).ended


@pytest.mark.parametrize("tokens", [[], [7, 8]])
def test_a_reply_that_was_cut_short_is_noticed(tokens: list[int]) -> None:
    with pytest.raises(Shortened):
        read_completion(answered(tokens), DRAW, ENDS)


def test_an_engine_without_the_keyed_processor_is_noticed() -> None:
    with pytest.raises(NotKeyed):
        read_completion(answered([2], [{"token_id:2": -0.1, "token_id:5": -2.0}]), DRAW, ENDS)


def test_a_refusal_is_one_line() -> None:
    assert reason_of(400, '{"error": {"message": "too\\nlong"}}') == "400: too long"
    assert reason_of(502, "<html>Bad\nGateway</html>") == "502: <html>Bad Gateway</html>"
