"""The cost of a step: sums by hand, and the prompt cache's bill, compared with a cache simulated token by token."""

from __future__ import annotations

import random

import pytest

from r2v.config import CostConfig
from r2v.data.episode import Tokens
from r2v.rollout.bill import PromptCache, StepBill, read_by_verifier, shared_prefix
from r2v.wire.message import Message
from tests.chains import SLM_PRICE

CACHE = PromptCache(usd_in=3.0, read=0.1, write=1.25, min_tokens=1000, lifetime=300)


def said(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(role="user", content=text) for text in texts)


def test_bills_add_up() -> None:
    one = StepBill(tokens=Tokens(slm_in=3, llm_cached=2), cost=1.0, cached_cost=0.5, seconds=2.0)
    two = StepBill(tokens=Tokens(slm_in=4, verifier_in=7), cost=0.25, cached_cost=0.25, seconds=1.0)
    assert one + two == StepBill(
        tokens=Tokens(slm_in=7, llm_cached=2, verifier_in=7), cost=1.25, cached_cost=0.75, seconds=3.0
    )
    assert sum([one, two], StepBill()) == one + two


def test_a_verifier_pays_the_small_policys_prompt_price() -> None:
    bill = read_by_verifier(1_000_000, SLM_PRICE)
    assert (bill.cost, bill.cached_cost, bill.seconds) == (SLM_PRICE.input, SLM_PRICE.input, SLM_PRICE.seconds_per_call)


@pytest.mark.parametrize(
    ("before", "now", "share"),
    [
        ((), ("ab", "cd"), 0.0),
        (("ab",), ("ab", "cd"), 0.5),
        (("ab", "cd"), ("ab", "cd"), 1.0),
        (("ab", "xx"), ("ab", "cdef"), 1 / 3),
        (("xx", "cd"), ("ab", "cd"), 0.0),
        (("ab", "cd", "ef"), ("ab",), 1.0),
        (("é",), ("é", "ab"), 0.5),
        ((), (), 0.0),
    ],
)
def test_the_shared_prefix_is_of_whole_messages_by_bytes(before, now, share) -> None:  # type: ignore[no-untyped-def]
    assert shared_prefix(said(*before), said(*now)) == pytest.approx(share)


def test_the_same_words_of_another_role_are_not_shared() -> None:
    assert shared_prefix([Message(role="tool", content="ab")], said("ab", "cd")) == 0.0


@pytest.mark.parametrize(
    ("tokens_in", "shared", "idle", "split"),
    [
        (999, 1.0, 0.0, (0, 0)),
        (1000, 0.0, 0.0, (0, 1000)),
        (4000, 0.75, 300.0, (3000, 1000)),
        (4000, 0.75, 300.1, (0, 4000)),
        (4000, 0.2, 0.0, (0, 4000)),
    ],
)
def test_what_is_read_and_what_is_written(tokens_in, shared, idle, split) -> None:  # type: ignore[no-untyped-def]
    assert CACHE.split(tokens_in, shared, idle) == split


def test_an_endpoint_without_a_cache_bills_the_list_price() -> None:
    none = PromptCache.of(3.0, CostConfig(), read=1.0)
    assert none.split(50_000, 0.9, 0.0) == (0, 0) and none.saved(0, 0) == 0.0


def test_a_providers_own_factors_go_before_the_settings() -> None:
    own = PromptCache.of(3.0, CostConfig(), read=0.5, write=1.0)
    assert own.saved(1_000_000, 1_000_000) == pytest.approx(1.5)


def test_an_episodes_bill_is_that_of_a_cache_of_tokens() -> None:
    """An independent cache: it holds the ids of the last prompt and finds the part that the next one repeats."""
    drawn = random.Random(7)
    for _ in range(200):
        pages = ["x" * drawn.randrange(100, 3000) for _ in range(drawn.randrange(1, 9))]
        asked = [step for step in range(len(pages)) if drawn.random() < 0.6]
        held: str | None = None
        expected, ours, before = 0.0, 0.0, ()
        for step in asked:
            prompt = "".join(pages[: step + 1])
            repeats = held is not None and prompt.startswith(held) and len(held) >= 1000
            read = len(held) if repeats and held is not None else 0
            expected += (read * 0.1 + (len(prompt) - read) * 1.25 if len(prompt) >= 1000 else len(prompt)) * 3.0 / 1e6
            held = prompt
            now = said(*pages[: step + 1])
            cached, written = CACHE.split(len(prompt), shared_prefix(before, now), 0.0)
            ours += len(prompt) * 3.0 / 1e6 - CACHE.saved(cached, written)
            before = now
        # a share of bytes is a float, cut to whole tokens: at most one token a call
        assert ours == pytest.approx(expected, abs=len(asked) * 1.15 * 3.0 / 1e6)
