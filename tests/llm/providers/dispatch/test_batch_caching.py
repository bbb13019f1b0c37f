"""Conversations in batches keep their history in the provider's cache, where the next turn finds it in time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from r2v.emulator import Emulator, Lifecycle
from r2v.llm.providers.anthropic import Anthropic
from r2v.llm.providers.dispatch.batch_caching import BatchCaching, kept_tokens
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, make_request
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.talk import MODELS, environment, remote

PAGE = "a page of the site " * 400
RATE = rate_of("anthropic", MODELS["anthropic"])


def request_at(turn: int) -> ProviderRequest:
    said = (Message(role="user", content=PAGE), Message(role="assistant", content="click")) * turn
    request = Request(messages=(*said, Message(role="user", content=PAGE)), key=("agent", turn), max_tokens=100)
    return make_request("0123abcd", request, Anthropic(RATE).request_body(request))


async def agent(model: ChatModel, number: int, turns: int) -> None:
    """Run an agent whose every step shows a page."""
    messages = [Message(role="user", content=f"agent {number}: {PAGE}")]
    for turn in range(turns):
        request = Request(messages=tuple(messages), key=("agent", number, turn), max_tokens=50)
        said = (await model.reply(request)).text
        messages += [Message(role="assistant", content=said), Message(role="user", content=f"{turn} {PAGE}")]


def test_an_agent_of_many_pages_pays_for_each_page_once_in_batches_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Emulator(lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        waves = Waves(max_conversations=2)
        model = waves.model(remote("anthropic", tmp_path))
        waves.run(partial(agent, model, number, 5) for number in range(2))
        bills = emulator.ledger().bills
    assert {bill.mode for bill in bills} == {"batch"} and len(bills) == 10
    longest = max(bill.tokens_in for bill in bills)
    read, written = sum(bill.cached_in for bill in bills), sum(bill.written_in for bill in bills)
    assert sum(bill.cached_in == 0 for bill in bills) == 4, "a first turn is not kept, so the second finds nothing"
    assert written == pytest.approx(2 * longest, rel=0.01), "each token is written once"
    listed = RATE.usd(TokenCounts(fresh=sum(bill.tokens_in for bill in bills)), batch=True)
    fresh = sum(bill.tokens_in for bill in bills) - read - written
    assert RATE.usd(TokenCounts(fresh=fresh, cached=read, write_1h=written), batch=True) < 0.85 * listed


def test_what_waits_too_long_or_is_not_found_again_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
    caching, later = BatchCaching(Anthropic(RATE), RATE), request_at(20)
    assert caching.is_worth_it(later, 1200.0)
    assert not caching.is_worth_it(later, 3600.0), "the hour would be over"
    assert not caching.is_worth_it(request_at(0), 1200.0), "it may be the only one"
    cheaper = caching.usd(later, 100, 1200.0)
    assert cheaper < RATE.usd(TokenCounts(fresh=later.tokens_in // 3, output=100), batch=True)
    for _ in range(2):
        kept = kept_tokens(later)
        caching.learn(later, RequestVerdict(kind="ok", tokens=TokenCounts(fresh=kept, cached=kept // 2)))
    assert caching.hits == pytest.approx(0.5, rel=1e-3) and not caching.is_worth_it(later, 1200.0)
    assert caching.usd(later, 100, 1200.0) > cheaper
