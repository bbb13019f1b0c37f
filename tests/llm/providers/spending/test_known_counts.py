"""Token counts of earlier answers bound the next ones, and no tokenizer crosses a cap."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.emulator import Emulator, Lifecycle
from r2v.errors import EnvironmentFault
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.provider_requests import max_prompt_tokens
from r2v.llm.providers.spending.known_counts import KnownCounts
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.talk import MODELS, environment, remote

WORDS, DIGITS = "many ordinary words of a page " * 60, "0123456789" * 180
RATE = rate_of("openai", MODELS["openai"])


def body(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "m", "messages": [{"role": "system", "content": WORDS}, *messages]}


def trusted() -> KnownCounts:
    counts = KnownCounts()
    for number in range(4):
        counts.learn(body(f"task {number}"), 430)
    return counts


def test_what_was_counted_bounds_what_begins_like_it_and_bytes_bound_the_rest() -> None:
    counts = KnownCounts()
    counts.learn(body("task"), 430)
    assert counts.at_most(body("task", "click", "page")) is None, "not relied on before it has held"
    counts = trusted()
    known = counts.at_most(body("task 1", "click", "page"))
    assert known == 430 + max_prompt_tokens({"messages": [{"content": "click"}, {"content": "page"}]})
    other = counts.at_most(body("another task"))
    assert other == 430 + max_prompt_tokens({"messages": [{"content": "another task"}]}), "the same system prompt"
    assert counts.at_most({"model": "n"} | {"messages": [{"role": "user", "content": "x"}]}) is None
    assert counts.at_most({"prompt": "of a provider of one's own"}) is None


def test_one_count_above_what_was_foreseen_ends_it_for_good() -> None:
    counts = trusted()
    counts.learn(body("task 1", "click", "page"), 9999)
    assert counts.refuted and counts.at_most(body("task 1")) is None
    counts.learn(body("task 1", "click", "page"), 10)
    assert counts.at_most(body("task 1")) is None


def bytes_are_tokens(text: str) -> int:
    return len(text.encode())


def digits_are_tokens(text: str) -> int:
    """Count tokens, few until the page changes: an estimate by mean bytes per token would be wrong by a factor of
    eight."""
    return sum(letter.isdigit() for letter in text) + len(text) // 8


async def agent(model: ChatModel, number: int) -> None:
    messages = [Message(role="system", content=WORDS), Message(role="user", content=f"task {number}")]
    for turn in range(5):
        request = Request(messages=tuple(messages), key=("agent", number, turn), max_tokens=20)
        said = (await model.reply(request)).text
        page = DIGITS if turn >= 2 else WORDS
        messages += [Message(role="assistant", content=said), Message(role="user", content=f"{turn} {page}")]


@pytest.mark.parametrize("count", [None, bytes_are_tokens, digits_are_tokens])
def test_no_tokenizer_crosses_the_cap(
    count: Callable[[str], int] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cap = 0.02
    with Emulator(
        answer=lambda _: "click", lifecycle=Lifecycle(polls=1), **({"count": count} if count else {})
    ) as served:
        for name, value in environment(served).items():
            monkeypatch.setenv(name, value)
        waves = Waves(max_conversations=8)
        model = waves.model(remote("openai", tmp_path, mode="concurrent", max_usd=cap, max_concurrent=4))
        with pytest.raises(EnvironmentFault, match="max_usd") as stopped:
            waves.run(partial(agent, model, number) for number in range(30))
        bills = served.ledger().bills
    tokens = [
        (TokenCounts(fresh=one.tokens_in - one.cached_in, cached=one.cached_in, output=one.tokens_out)) for one in bills
    ]
    billed = sum(RATE.usd(one, batch=False) for one in tokens)
    spent, next_usd = (float(usd) for usd in re.findall(r"\$(\d+\.\d{4})", str(stopped.value)))
    assert spent - 1e-4 <= billed <= cap, "what was in flight when it stopped is paid too"
    assert spent + next_usd > cap - 1e-4, "it does not stop while the next request fits"
