"""The cheapest of batches, direct calls, and direct calls that read the conversation from a cache, by their bills."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.config import TeacherConfig
from r2v.emulator import Emulator, Lifecycle
from r2v.llm.providers.anthropic import Anthropic
from r2v.llm.providers.dispatch.batch_or_direct import (
    BatchCaching,
    BatchOrDirect,
    CollectionPlans,
    collection_plans,
    kept_tokens,
)
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import Rate, rate_of
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, make_request, read_request, with_mark
from r2v.llm.providers.spending.budget import SharedBudget, SpendTracker
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.journal_state import JournalState
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.talk import MODELS, environment, remote

PAGE = "a page of the site " * 300
RATE = rate_of("anthropic", MODELS["anthropic"])


def request_at(turn: int, monkeypatch: pytest.MonkeyPatch) -> ProviderRequest:
    """Return an agent's request after so many steps, each with a page."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
    said = (Message(role="user", content=PAGE), Message(role="assistant", content="click")) * turn
    request = Request(messages=(*said, Message(role="user", content=PAGE)), key=("agent", turn), max_tokens=100)
    return make_request("0123abcd", request, Anthropic(RATE).request_body(request))


def choice_of(path: Path, **policy: float) -> BatchOrDirect:
    tracker = SpendTracker(Journal(path / "journal.jsonl"), JournalState(run="r"), RATE, SharedBudget(None))
    return BatchOrDirect(DispatchPolicy(**{"tail": 0.0, **policy}), tracker, BatchCaching(None, RATE))  # type: ignore[arg-type]


def test_a_long_conversation_is_cheaper_by_calls_that_read_it_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = choice_of(tmp_path, waiting_usd_per_hour=0.0)
    short, long = request_at(0, monkeypatch), request_at(20, monkeypatch)
    assert choice.saved_usd([short], 1200.0) > 0 > choice.saved_usd([long], 1200.0)
    assert choice.use_batch([short] * 5, 5, 1200.0)
    assert not choice.use_batch([long] * 5, 5, 1200.0), "waiting costs nothing here, and batches cost more all the same"
    # by hand: 19 of 21 pages are read at a tenth, two written at 1.25; in a batch, all of them at a half
    kept, prompt = kept_tokens(long), long.tokens_in // 3
    assert kept == pytest.approx(prompt * 20 / 21, rel=0.01)
    direct = 0.1 * kept + 1.25 * (prompt - kept)
    saved = (direct - 0.5 * prompt) * RATE.input / 1e6 + 0.5 * 100 * RATE.output / 1e6
    assert choice.saved_usd([long], 1200.0) == pytest.approx(saved)


def test_an_hour_is_paid_for_once_by_all_that_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice, request = choice_of(tmp_path, waiting_usd_per_hour=1.0), request_at(0, monkeypatch)
    saved = choice.saved_usd([request], 1200.0)
    enough = int(1200 / 3600 / saved) + 1
    assert not choice.use_batch([request], enough // 2, 1200.0)
    assert choice.use_batch([request], 2 * enough, 1200.0), "a small wave of a big cohort goes with the cohort"


def test_a_mark_is_put_at_the_end_of_the_conversation_and_is_no_part_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = request_at(1, monkeypatch)
    sent = with_mark(later.body)
    mark = {"type": "text", "text": PAGE, "cache_control": {"type": "ephemeral"}}
    assert sent["messages"][-1]["content"] == [mark] and sent["messages"][:-1] == later.body["messages"][:-1]
    assert later.body["messages"][-1]["content"] == PAGE
    line = Anthropic(RATE).kept_line(later)
    assert line["params"]["messages"][-1]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert read_request(line) == later, "who resumes the batch finds the same request"


def test_both_plans_of_a_collection_are_named_with_the_setting_that_changes_the_choice() -> None:
    """400 requests of 5,000 and 100 tokens in 40 episodes of 10 turns: 2 M tokens in, .04 M out."""
    teacher = TeacherConfig(provider="anthropic", model_name=MODELS["anthropic"], max_concurrent=20)
    rate = Rate(model="m", input=1.5, output=10.0, batch=0.5, cached=1.0, write_5m=1.0, write_1h=1.0)
    tokens = TokenCounts(fresh=2_000_000, output=40_000)

    def plan(width: int = 1000, rate: Rate = rate, **settings: Any) -> CollectionPlans:
        asked = replace(teacher, **settings)
        return collection_plans(asked, rate, tokens, requests=400, episodes=40, turns=10, width=width)

    figures = "collection plan: episodes=40 batches=$1.70/3.33h direct=$3.40/0.03h "
    saved = 'reason="batches save $1.70, waiting costs ${}" setting=teacher.waiting_usd_per_hour={}'
    assert plan().line == f"{figures}chosen=direct {saved.format('3.31', '1')}"
    assert plan(waiting_usd_per_hour=0.5).line == f"{figures}chosen=batches {saved.format('1.65', '0.5')}"
    assert plan(mode="batch").line == f'{figures}chosen=batches reason="teacher.mode=batch" setting=teacher.mode=batch'
    assert plan(width=20).hours_batch == pytest.approx(20 / 3), "two rounds of ten turns"
    assert "chosen=direct" in plan(rate=replace(rate, batch=1.0), waiting_usd_per_hour=0.0, mode="auto").line


CACHED_PAGE = "a page of the site " * 400
CACHE_RATE = rate_of("anthropic", MODELS["anthropic"])


def cached_request(turn: int) -> ProviderRequest:
    said = (Message(role="user", content=CACHED_PAGE), Message(role="assistant", content="click")) * turn
    request = Request(messages=(*said, Message(role="user", content=CACHED_PAGE)), key=("agent", turn), max_tokens=100)
    return make_request("0123abcd", request, Anthropic(CACHE_RATE).request_body(request))


async def agent(model: ChatModel, number: int, turns: int) -> None:
    """Run an agent whose every step shows a page."""
    messages = [Message(role="user", content=f"agent {number}: {CACHED_PAGE}")]
    for turn in range(turns):
        request = Request(messages=tuple(messages), key=("agent", number, turn), max_tokens=50)
        said = (await model.reply(request)).text
        messages += [Message(role="assistant", content=said), Message(role="user", content=f"{turn} {CACHED_PAGE}")]


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
    listed = CACHE_RATE.usd(TokenCounts(fresh=sum(bill.tokens_in for bill in bills)), batch=True)
    fresh = sum(bill.tokens_in for bill in bills) - read - written
    assert CACHE_RATE.usd(TokenCounts(fresh=fresh, cached=read, write_1h=written), batch=True) < 0.85 * listed


def test_what_waits_too_long_or_is_not_found_again_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
    caching, later = BatchCaching(Anthropic(CACHE_RATE), CACHE_RATE), cached_request(20)
    assert caching.is_worth_it(later, 1200.0)
    assert not caching.is_worth_it(later, 3600.0), "the hour would be over"
    assert not caching.is_worth_it(cached_request(0), 1200.0), "it may be the only one"
    cheaper = caching.usd(later, 100, 1200.0)
    assert cheaper < CACHE_RATE.usd(TokenCounts(fresh=later.tokens_in // 3, output=100), batch=True)
    for _ in range(2):
        kept = kept_tokens(later)
        caching.learn(later, RequestVerdict(kind="ok", tokens=TokenCounts(fresh=kept, cached=kept // 2)))
    assert caching.hits == pytest.approx(0.5, rel=1e-3) and not caching.is_worth_it(later, 1200.0)
    assert caching.usd(later, 100, 1200.0) > cheaper
