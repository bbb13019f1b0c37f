"""A scripted model is called, counted and priced like any other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from r2v.config import Price
from r2v.envs.chain import ChainBenchmark, chain_actor
from r2v.llm.scripted import ScriptedBackend, count_tokens
from r2v.llm.types import Request
from r2v.wire.message import Message

PRICE = Price(input=3.0, output=12.0, seconds_per_call=0.0, seconds_per_token=0.0)


def request(text: str = "close ticket #42, please", **fields: object) -> Request:
    return replace(Request(messages=(Message(role="user", content=text),), key=(1, "task", 0, "llm")), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("close ticket #42, please", 6), ('{"tool":"go"}', 9), ("two\nlines", 2)]
)
def test_tokens_are_words_and_marks(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


def test_threads_that_count_other_texts_at_the_same_time_count_right() -> None:
    """More texts than the cache holds, so that each thread makes room."""
    texts = ["x " * (number % 7) + str(number) for number in range(8_300)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(count_tokens, texts)) == [len(text.split()) for text in texts]


def test_a_reply_is_counted_and_priced() -> None:
    backend = ScriptedBackend(lambda question: "done now", name="expert-v1", price=PRICE)
    [reply] = backend.answer([request()])
    assert (reply.text, reply.model) == ("done now", "expert-v1")
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (6, 2)
    assert reply.usage.cost_usd == pytest.approx((6 * 3.0 + 2 * 12.0) / 1e6, rel=1e-12)


def test_replies_come_in_the_order_of_the_questions() -> None:
    backend = ScriptedBackend(lambda question: question.messages[0].content[::-1], name="m", price=PRICE)
    assert [reply.text for reply in backend.answer([request("abc"), request("de"), request("abc")])] == [
        "cba",
        "ed",
        "cba",
    ]


def test_sample_k_is_drawn_under_its_own_key() -> None:
    backend = ScriptedBackend(lambda question: f"{question.key}", name="m", price=PRICE)
    [sampled] = backend.answer([request(num_samples=3, temperature=0.7)])
    assert [sample.text for sample in sampled.samples] == [f"{(1, 'task', 0, 'llm', k)}" for k in range(3)]
    assert sampled.usage.tokens_out == 3 * count_tokens(sampled.text)
    [greedy] = backend.answer([request(num_samples=2)])
    assert [sample.text for sample in greedy.samples] == [f"{(1, 'task', 0, 'llm')}"] * 2


def test_the_context_is_what_is_counted_once_per_request() -> None:
    world = ChainBenchmark(num_tasks=1).make()
    page, _ = world.reset(seed=1, task=ChainBenchmark(num_tasks=1).tasks()[0])
    backend = ScriptedBackend(chain_actor(0.5), name="m", price=PRICE)
    [reply] = backend.answer([request(page, num_samples=1, temperature=1.0)])
    [five] = backend.answer([request(page, num_samples=5, temperature=1.0)])
    assert reply.usage.tokens_in == five.usage.tokens_in == count_tokens(page)
    assert len({sample.text for sample in five.samples}) > 1
