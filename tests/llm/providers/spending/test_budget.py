"""Prices, budget, names and verdicts: the arithmetic under the provider engine."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2v.emulator import Emulator, Lifecycle
from r2v.errors import EnvironmentFault, InputError
from r2v.llm.providers.dispatch.batch_or_direct import BatchCaching, BatchOrDirect
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import Rate, rate_of
from r2v.llm.providers.provider import LineSplitter, seconds_of
from r2v.llm.providers.provider_requests import (
    ProviderRequest,
    RequestVerdict,
    canonical_json,
    make_request,
    max_prompt_tokens,
    read_request,
)
from r2v.llm.providers.spending.budget import KnownCounts, SharedBudget, SpendTracker
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.journal_state import JournalState, result_row
from r2v.llm.providers.verdicts import one_line
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.talk import MODELS, environment, play, remote

CONFIGS = Path(__file__).parents[4] / "configs"
RATE = Rate(model="m", input=2.5, output=10.0, batch=0.5, cached=0.5, write_5m=1.0, write_1h=1.0)


def request_of(name: str = "k", text: str = "hello", max_tokens: int = 10, run: str = "0123abcd") -> ProviderRequest:
    request = Request(messages=(Message(role="user", content=text),), key=(name,), max_tokens=max_tokens)
    return make_request(
        run, request, {"model": "m", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
    )


@given(text=st.text(max_size=60), key=st.lists(st.one_of(st.integers(), st.text(max_size=9)), max_size=4))
def test_a_custom_id_is_in_both_alphabets_and_reads_back(text: str, key: list[int | str]) -> None:
    request = Request(
        messages=(Message(role="user", content=text), Message(role="assistant", content=text)),
        key=tuple(key),
        max_tokens=7,
    )
    request = make_request(
        "0123abcd",
        request,
        {
            "model": "m",
            "max_tokens": 7,
            "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}],
        },
    )
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", request.custom_id) and request.turn == 1
    line = canonical_json({"custom_id": request.custom_id, "params": request.body})
    assert "\n" not in line and read_request(json.loads(line)) == request
    assert request.tokens_in >= len(text.encode())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", "z"])), max_size=12))
def test_one_name_never_stands_for_two_bodies(asked: list[tuple[str, str]]) -> None:
    state, names = JournalState(run="0123abcd"), dict[str, str]()
    for key, text in asked:
        request = state.new_attempt(request_of(key, text))
        assert names.setdefault(request.custom_id, request.sha256) == request.sha256
    for custom_id in names:
        with pytest.raises(InputError, match="belongs to another body"):
            state.register(custom_id, "0" * 64)


def test_replaying_a_journal_twice_gives_the_same_total(tmp_path: Path) -> None:
    requests = [request_of(str(n)) for n in range(5)]

    async def write() -> None:
        journal = Journal(tmp_path / "j")
        list(journal.open())
        for request in requests:
            verdict = RequestVerdict(kind="ok", text="\u2028 yes", tokens=TokenCounts(fresh=1000, output=100))
            await journal.write(
                result_row(request, verdict, RATE.usd(TokenCounts(fresh=1000, output=100), batch=True), None)
            )
        journal.close()

    asyncio.run(write())
    totals = []
    for _ in range(2):
        journal, state = Journal(tmp_path / "j"), JournalState(run="0123abcd")
        for offset, row in journal.open():
            state.apply(row, offset)
        assert journal.read(state.answers[requests[3].identity])["text"] == "\u2028 yes"
        journal.close()
        totals.append(state.spent)
    assert totals == [pytest.approx(5 * 0.00175)] * 2


def test_rows_of_the_same_moment_share_one_sync_and_a_refusing_disk_is_told(tmp_path: Path) -> None:
    syncs: list[int] = []

    async def together() -> None:
        journal = Journal(tmp_path / "j", sync=syncs.append)
        list(journal.open())
        await asyncio.gather(*(journal.write({"row": "call", "id": n}) for n in range(20)))
        journal.close()

    asyncio.run(together())
    assert len(syncs) == 1

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    async def refused() -> None:
        journal = Journal(tmp_path / "j", sync=full)
        list(journal.open())
        await journal.write({"row": "call"})

    with pytest.raises(EnvironmentFault, match="No space left"):
        asyncio.run(refused())
    assert (tmp_path / "j").stat().st_size > 0


@given(cap=st.floats(0.0, 0.01), worst=st.lists(st.integers(1, 400), max_size=20))
def test_what_is_held_never_passes_the_cap(cap: float, worst: list[int]) -> None:
    tracker = SpendTracker(Journal(Path("none")), JournalState(run="r"), RATE, SharedBudget(cap))
    held = 0.0
    for size in worst:
        usd = tracker.worst_case(request_of(text="x" * size), batch=True)
        if tracker.set_aside(usd):
            held += usd
    assert held <= cap + 1e-8


def test_auto_batches_many_and_calls_the_tail_and_the_cheap(tmp_path: Path) -> None:
    tracker = SpendTracker(Journal(tmp_path / "j"), JournalState(run="r"), RATE, SharedBudget(None))
    requests = [request_of(str(n), "x" * 3000, 200) for n in range(1000)]
    choice = BatchOrDirect(DispatchPolicy(), tracker, BatchCaching(None, RATE))
    assert choice.use_batch(requests, 1000, 1200.0)
    assert not choice.use_batch(requests[:50], 50, 1200.0), "the tail: 5 % of the most conversations ever open"
    assert not choice.use_batch(requests[:60], 60, 1200.0), "60 questions save less than 20 minutes cost"
    assert choice.use_batch(requests[:60], 60, 10.0), "a short wait is worth it"
    budget = sum(tracker.worst_case(request, batch=True) for request in requests[:10]) * 1.5
    poor = SpendTracker(Journal(tmp_path / "j"), JournalState(run="r"), RATE, SharedBudget(budget))
    choice = BatchOrDirect(DispatchPolicy(), poor, BatchCaching(None, RATE))
    assert choice.use_batch(requests[:10], 10, 1200.0), "the budget holds the batch only"


@given(
    st.lists(st.text(max_size=20).map(lambda t: json.dumps(t, ensure_ascii=False).encode()), max_size=8),
    st.integers(1, 7),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_lines_are_cut_at_newlines_alone(lines: list[bytes], step: int, end: bytes) -> None:
    data, splitter, found = b"".join(line + end for line in lines) + b'{"cut', LineSplitter(), list[bytes]()
    for start in range(0, len(data), step):
        found += splitter.feed(data[start : start + step])
    assert found == lines and splitter.end() == b'{"cut'


def test_no_key_is_told() -> None:
    assert one_line("bad key sk-abcdef0123456789 and secret-x", "secret-x") == "bad key [key] and [key]"
    assert seconds_of({"retry-after": "300"}) == 300.0
    assert seconds_of({"retry-after": "Fri, 20 Nov 2026 10:00:05 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}) == 5.0


def make_tracker(budget: SharedBudget, path: Path, state: JournalState | None = None) -> SpendTracker:
    return SpendTracker(Journal(path), state or JournalState(run="r"), RATE, budget)


def test_an_answer_is_billed_by_its_tokens_and_at_its_worst_where_they_are_not_known() -> None:
    tracker, request = make_tracker(SharedBudget(None), Path("a")), request_of(text="x" * 300, max_tokens=100)
    tokens = TokenCounts(fresh=40, cached=10, output=7)
    for batch in (True, False):
        assert tracker.billed(request, RequestVerdict(kind="ok", tokens=tokens), batch=batch) == RATE.usd(
            tokens, batch=batch
        )
        worst = tracker.worst_case(request, batch=batch)
        assert tracker.billed(request, RequestVerdict(kind="ok"), batch=batch) == worst > RATE.usd(tokens, batch=batch)
        assert tracker.billed(request, RequestVerdict(kind="retry", billed=False), batch=batch) == 0.0


def test_a_batch_is_billed_at_half_of_a_call() -> None:
    tracker, request = make_tracker(SharedBudget(None), Path("a")), request_of()
    assert tracker.worst_case(request, batch=True) == pytest.approx(tracker.worst_case(request, batch=False) / 2)


def test_the_cap_holds_to_a_millionth_of_a_cent() -> None:
    tracker = make_tracker(SharedBudget(1.0), Path("a"))
    assert tracker.set_aside(0.4) and tracker.busy
    assert not tracker.set_aside(0.600_01), "a thousandth of a dollar is no rounding"
    assert not tracker.set_aside(0.600_000_01)
    assert tracker.set_aside(0.6) and tracker.budget.remaining == pytest.approx(0.0)


def test_a_billionth_of_a_dollar_is_the_least_that_is_no_rounding() -> None:
    tracker = make_tracker(SharedBudget(0.0), Path("a"))
    assert tracker.set_aside(1e-9) and tracker.busy, "sums of reservations come back to 0 only so nearly"
    assert not make_tracker(SharedBudget(0.0), Path("a")).set_aside(1.1e-9)
    spent = make_tracker(SharedBudget(1.0), Path("a"), JournalState(run="r", spent=0.5, lost_usd=0.25))
    assert spent.committed == 0.75 and not spent.busy


def test_nothing_is_reserved_before_every_tracker_has_told_what_it_spent() -> None:
    budget = SharedBudget(1.0, num_trackers=2)
    first = make_tracker(budget, Path("a"))
    assert budget.remaining == 0.0 and not first.set_aside(0.1) and not budget.idle
    second = make_tracker(budget, Path("b"), JournalState(run="r", spent=0.25, lost_usd=0.25))
    assert budget.remaining == 0.5 and budget.idle
    assert second.set_aside(0.5) and not first.set_aside(0.1)
    assert not budget.idle and second.busy and not first.busy
    replaced = make_tracker(budget, Path("b"))
    assert budget.remaining == 1.0 and replaced.budget is budget, "the same journal, read again, counts once"
    assert SharedBudget(None, num_trackers=5).remaining == float("inf")


def test_one_batch_or_one_call_in_flight_keeps_a_budget_from_being_idle() -> None:
    budget = SharedBudget(None)
    for state in (JournalState(run="r", calls={"r-c-0-0": 0.1}), JournalState(run="r")):
        tracker = make_tracker(budget, Path("a"), state)
        assert budget.idle is not tracker.busy is bool(state.calls)


def test_an_exhausted_budget_says_what_is_spent_and_what_of_it_was_lost() -> None:
    budget = SharedBudget(1.0, num_trackers=2)
    make_tracker(budget, Path("a"), JournalState(run="r", spent=0.5))
    assert "max_usd=1.0: $0.5000 are spent and the next request may cost $0.0123" in str(budget.exhausted(0.01234))
    make_tracker(budget, Path("b"), JournalState(run="r", spent=0.2, lost_usd=0.1))
    assert "$0.8000 are spent (of it at most $0.1000 for calls whose answers were lost)" in str(budget.exhausted(0.5))


def test_who_waits_at_one_tracker_is_woken_by_a_change_at_another(tmp_path: Path) -> None:
    async def play() -> None:
        budget = SharedBudget(1.0, num_trackers=2)
        first = make_tracker(budget, tmp_path / "a")
        waiting = asyncio.ensure_future(first.wait_for_change())
        await asyncio.sleep(0)
        second = make_tracker(budget, tmp_path / "b")
        await asyncio.wait_for(waiting, 10)  # joined: there may be money now
        list(second.journal.open())
        waiting = asyncio.ensure_future(first.wait_for_change())
        await asyncio.sleep(0)
        assert second.set_aside(0.75) and not waiting.done()
        await second.write_reservation({"row": "call", "id": "r-c-0-0", "sha256": "x", "usd": 0.75})
        await asyncio.wait_for(waiting, 10)
        assert (second.committed, budget.remaining) == (0.75, 0.25), "reserved once: written, no longer set aside"
        await second.write({"row": "lost", "id": "r-c-0-0", "usd": 0.5})
        assert (second.committed, second.busy) == (0.5, False)
        second.journal.close()

    asyncio.run(play())


def test_a_reservation_that_could_not_be_written_is_given_back(tmp_path: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    async def play() -> None:
        tracker = SpendTracker(Journal(tmp_path / "j", sync=full), JournalState(run="r"), RATE, SharedBudget(1.0))
        list(tracker.journal.open())
        assert tracker.set_aside(0.75)
        with pytest.raises(EnvironmentFault):
            await tracker.write_reservation({"row": "call", "id": "r-c-0-0", "sha256": "x", "usd": 0.75})
        assert tracker.committed == 0.0

    asyncio.run(play())


V1_MODELS = {"openai": "gpt-4o-mini", "anthropic": "claude-3-haiku"}
RECORDED = Path(__file__).with_name("journal_v1")
"""Per provider: the folder of a run of three conversations, killed in its second turn, and the emulator's folder of
that moment; both written before rows and fields of this package were renamed. The second batch is the one in flight."""


def record(provider: str, last_row: str, folder: Path) -> float:
    """Copy a recorded run as it was right after the last row of this kind; return the time of its kill."""
    shutil.copytree(RECORDED / provider, folder, dirs_exist_ok=True)
    journal = folder / "journal" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    last = max(number for number, row in enumerate(rows) if row["row"] == last_row)
    journal.write_text("".join(lines[: last + 1]))
    return max(row["at"] for row in rows if "at" in row) + 60.0


@pytest.mark.parametrize("last_row", ["sending", "created", "ended", "answer"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_recorded_journal_is_resumed_and_nothing_is_paid_again(
    provider: str, last_row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at = record(provider, last_row, tmp_path)
    with Emulator(
        folder=tmp_path / "emulator",
        lifecycle=Lifecycle(polls=1),
        clock=lambda: killed_at,
        models=["claude-3-haiku-20240307"],
    ) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        turns = play(provider, tmp_path / "journal", count=3, turns=2, models=V1_MODELS)
        paid = emulator.ledger()
    assert [len(texts) for texts in turns] == [2] * 3
    assert sorted(paid.paid().values()) == [1] * 6
    assert len(paid.bills) == 6


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    (tmp_path / "journal.jsonl").write_text('{"row":"open","version":2,"run":"0123abcd","scope":{}}\n')
    with pytest.raises(InputError, match="is of version 2, this R2V writes 1"):
        play("openai", tmp_path)


WORDS, DIGITS = "many ordinary words of a page " * 60, "0123456789" * 180
COUNTED_RATE = rate_of("openai", MODELS["openai"])


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
    billed = sum(COUNTED_RATE.usd(one, batch=False) for one in tokens)
    spent, next_usd = (float(usd) for usd in re.findall(r"\$(\d+\.\d{4})", str(stopped.value)))
    assert spent - 1e-4 <= billed <= cap, "what was in flight when it stopped is paid too"
    assert spent + next_usd > cap - 1e-4, "it does not stop while the next request fits"
