"""State of a journal from its rows, kind by kind: money, answers, refusals, and the progress of each batch."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.errors import InputError
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, make_request
from r2v.llm.providers.spending.journal_state import JournalState, result_row, verdict_of
from r2v.llm.types import Request
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message

BATCH = "0123abcd-b0"


def request_of(name: str, turns: int = 0) -> ProviderRequest:
    messages = (Message(role="user", content="hello"), Message(role="assistant", content="yes")) * turns
    request = Request(messages=(*messages, Message(role="user", content=name)), key=(name,), max_tokens=10)
    return make_request("0123abcd", request, {"messages": [{"role": "user", "content": name}], "max_tokens": 10})


def state_of(*rows: dict[str, Any]) -> JournalState:
    state = JournalState(run="0123abcd")
    for offset, row in enumerate(rows):
        state.apply(row, offset)
    return state


def intent(batch: str = BATCH, usd: float = 0.5) -> dict[str, Any]:
    return {"row": "intent", "batch": batch, "count": 2, "sha256": "s", "tokens": 7, "usd": usd, "at": 100.0}


def about(kind: str, **fields: Any) -> dict[str, Any]:
    return {"row": kind, "batch": BATCH, **fields}


def test_a_batch_holds_its_reservation_from_its_intent_until_it_is_applied_or_dropped() -> None:
    state = state_of(intent(), intent("0123abcd-b1", 0.25))
    assert (state.reserved, state.num_batches, list(state.batches)) == (0.75, 2, [BATCH, "0123abcd-b1"])
    batch = state.batches[BATCH]
    assert (batch.count, batch.tokens, batch.began, batch.id, batch.ended) == (2, 7, 100.0, None, False)
    for end in ("applied", "dropped"):
        left = state_of(intent(), intent("0123abcd-b1", 0.25), about(end))
        assert (left.reserved, left.num_batches, list(left.batches)) == (0.25, 2, ["0123abcd-b1"])


def test_a_batch_moves_from_row_to_row() -> None:
    steps = [
        (about("file", id="file-1"), {"file_id": "file-1"}),
        (about("sending", at=110.0, newest="old"), {"sent_at": 110.0, "newest": "old", "unknown_at": None}),
        (about("unknown", at=120.0), {"unknown_at": 120.0, "sent_at": 110.0}),
        (about("absent", why="x"), {"sent_at": None, "unknown_at": None, "file_id": "file-1"}),
        (about("sending", at=130.0, newest=None), {"sent_at": 130.0, "newest": None}),
        (about("absent", why="x", file_gone=True), {"sent_at": None, "file_id": None}),
        (about("sending", at=140.0, newest=None), {"sent_at": 140.0, "unknown_at": None}),
        (about("created", id="batch_9"), {"id": "batch_9", "sent_at": None, "ended": False}),
        (about("ended", state="completed"), {"ended": True, "id": "batch_9"}),
    ]
    for number in range(len(steps)):
        state = state_of(intent(), *(row for row, _ in steps[: number + 1]))
        for name, value in steps[number][1].items():
            assert getattr(state.batches[BATCH], name) == value, (steps[number][0], name)
        assert state.batch_ids == ({"batch_9"} if number >= 7 else set())


def test_an_answer_is_counted_with_its_money_and_its_tokens_and_stands_at_its_offset() -> None:
    first, second = request_of("a"), request_of("b", turns=2)
    tokens = TokenCounts(fresh=30, cached=10, output=5)
    answered = RequestVerdict(kind="ok", text="yes", cut=True, tokens=tokens)
    unknown = RequestVerdict(kind="ok", text="no")
    rows = [result_row(first, answered, 0.125, BATCH), result_row(second, unknown, 0.25, BATCH)]
    state = state_of(intent(), *rows)
    assert state.answers == {first.identity: 1, second.identity: 2}
    assert (state.spent, state.prompt_tokens, state.cached_tokens) == (0.375, 40, 10)
    assert state.counts == {"answered": 2} and state.batches[BATCH].accounted == {first.custom_id, second.custom_id}
    assert verdict_of(rows[0]) == answered and verdict_of(rows[1]) == unknown
    assert second.identity[1] == 2, "the turn is a part of what is asked"


def test_money_is_written_to_ten_decimals() -> None:
    """A token of the cheapest model, in a batch and read from a cache, costs some 1e-9 USD."""
    row = result_row(request_of("a"), RequestVerdict(kind="ok", text="yes"), 0.123456789876, None)
    assert row["usd"] == 0.1234567899


def test_a_failure_is_billed_and_only_one_for_good_is_a_refusal() -> None:
    request = request_of("a")
    for kind, refused in (
        ("retry", {}),
        ("fatal", {request.identity: RequestVerdict(kind="fatal", reason="too long")}),
        ("account", {}),
    ):
        verdict = RequestVerdict(kind=kind, reason="too long")  # type: ignore[arg-type]
        row = result_row(request, verdict, 0.125, None)
        assert row["row"] == "failed"
        state = state_of(row)
        assert (state.spent, state.answers, state.refused, state.counts) == (0.125, {}, refused, {kind: 1})


def test_a_call_is_reserved_until_its_answer_or_its_loss_is_known() -> None:
    request = request_of("a")
    call = {"row": "call", "id": request.custom_id, "sha256": request.sha256, "usd": 0.5}
    assert state_of(call).reserved == 0.5
    answer = result_row(request, RequestVerdict(kind="ok", text="yes"), 0.125, None)
    assert (state_of(call, answer).reserved, state_of(call, answer).spent) == (0.0, 0.125)
    lost = state_of(call, {"row": "lost", "id": request.custom_id, "usd": 0.5})
    assert (lost.reserved, lost.spent, lost.lost_usd, lost.counts) == (0.0, 0.0, 0.5, {"lost": 1})
    assert request.identity not in lost.answers


def test_each_attempt_has_a_name_of_its_own_across_processes() -> None:
    request = request_of("a")
    state = JournalState(run="0123abcd")
    names = [state.new_attempt(request).custom_id for _ in range(3)]
    assert [name.rpartition("-")[2] for name in names] == ["0", "1", "2"]
    later = state_of({"row": "call", "id": names[2], "sha256": request.sha256, "usd": 0.0})
    assert later.new_attempt(request).custom_id.endswith("-3"), "after the highest that was used"
    later.register(names[0], request.sha256)
    assert later.new_attempt(request).custom_id.endswith("-4"), "an older one read again takes nothing back"
    with pytest.raises(InputError, match="stands for another body"):
        later.register(names[2], "0" * 64)
