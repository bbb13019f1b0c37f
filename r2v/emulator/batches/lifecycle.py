"""Batch lifecycle: all requests are answered, refused or left out, and billed, when the batch is accepted.

Later polls only simulate progress. So an accepted batch runs exactly once, and a client that lost track of it has paid
for it, as at the real providers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from r2v.emulator.answer_bodies import EmulatedCompletion, answer_body, complete
from r2v.emulator.answers import EmulatedRequest
from r2v.emulator.batches.request_results import (
    LINE_FAULTS,
    ResultRow,
    failed_row,
    succeeded_row,
    unknown_error_row,
    unrun_row,
)
from r2v.emulator.bodies import CREDIT, parse_request
from r2v.emulator.ledger import Bill
from r2v.emulator.server_state import EmulatedBatch, ServerState
from r2v.storage.files import replacing


@dataclass(frozen=True, slots=True)
class Entry:
    """A request of a batch."""

    custom_id: str
    body: dict[str, Any]


def accept(state: ServerState, batch: EmulatedBatch, entries: Iterable[Entry]) -> None:
    """Run the batch and write its rows, then its bills, then its record, which makes it visible."""
    counts: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    drafts = state.folder / "batches" / f"{batch.id}.bills"
    with replacing(state.results_path(batch.id)) as rows, drafts.open("wb") as bills:
        for index, entry in enumerate(entries):
            row, bill, prompt = _run(state, batch, index, entry)
            rows.write(row.encode())
            counts[row.kind] += 1
            tokens["prompt"] += prompt
            if bill is not None:
                tokens.update({"in": bill.tokens_in, "cached": bill.cached_in, "out": bill.tokens_out})
                bills.write(json.dumps(vars(bill)).encode() + b"\n")
    batch.counts, batch.tokens = dict(counts), dict(tokens)
    with drafts.open("rb") as bills:
        state.ledger.bill(Bill(**json.loads(line)) for line in bills)
    drafts.unlink()
    state.save_batch(batch)


def run_until(batch: EmulatedBatch) -> int:
    """Return the number of a batch's requests that run before it expires."""
    if "expired_none_done" in batch.faults or "expired_no_files" in batch.faults:
        return 0
    return batch.total // 2 if "expired_half_done" in batch.faults else batch.total


def _run(state: ServerState, batch: EmulatedBatch, index: int, entry: Entry) -> tuple[ResultRow, Bill | None, int]:
    """Run a request and return its row, its bill (None unless answered) and its prompt tokens."""
    provider, name = batch.provider, entry.custom_id
    try:
        request: EmulatedRequest | None = parse_request(provider, entry.body, name)
    except ValueError as error:
        request, problem = None, str(error)
    prompt = request.tokens_in if request else 0
    if index >= run_until(batch):
        return unrun_row(provider, "expired", name), None, prompt
    refused = _line_fault(provider, name, state.injector.draw("line", provider, "create"))
    if refused is not None:
        return refused, None, prompt
    if request is None:
        return failed_row(provider, name, 400, problem), None, prompt
    if "completed_null_output" in batch.faults or "completed_empty_output" in batch.faults:
        return (
            failed_row(provider, name, 400, "The model does not accept this request", code="invalid_value"),
            None,
            prompt,
        )
    if (refusal := state.refusal(provider, batch.endpoint, entry.body)) is not None:
        row = failed_row(provider, name, refusal.status, refusal.message, code=refusal.code, param=refusal.param)
        return row, None, prompt
    body, bill = answer(state, request, path=batch.endpoint, batch=batch.id)
    return succeeded_row(provider, name, body), bill, prompt


def answer(
    state: ServerState, request: EmulatedRequest, *, path: str, batch: str | None
) -> tuple[dict[str, Any], Bill]:
    """Return a request's answer and its bill, not yet booked."""
    completion, bill = complete_and_bill(state, request, batch=batch)
    return answer_body(completion, path, state.now()), bill


def complete_and_bill(
    state: ServerState, request: EmulatedRequest, *, batch: str | None
) -> tuple[EmulatedCompletion, Bill]:
    """Return a request's completion and its bill, not yet booked."""
    faults = state.injector.draw("answer", request.provider, "create" if batch else "sync")
    completion = complete(request, state.answer, faults, state.cached(request), state.count)
    bill = Bill(
        provider=request.provider,
        mode="batch" if batch else "sync",
        batch=batch,
        custom_id=request.custom_id,
        model=request.model,
        body_sha256=request.sha256,
        tokens_in=completion.tokens_in,
        tokens_out=completion.tokens_out,
        cached_in=completion.cached,
        written_in=completion.written,
        written_1h=completion.written_1h,
    )
    return completion, bill


def _line_fault(provider: str, name: str, faults: frozenset[str]) -> ResultRow | None:
    for fault in sorted(faults & LINE_FAULTS.keys()):
        status, message, code = LINE_FAULTS[fault]
        return failed_row(provider, name, status, message, code=code)
    if "line_overloaded" in faults:
        return failed_row(provider, name, 529 if provider == "anthropic" else 503, "Overloaded")
    if "line_credit" in faults:
        openai = provider == "openai"
        return failed_row(
            provider,
            name,
            429 if openai else 400,
            CREDIT[provider],
            code="insufficient_quota",
            kind="insufficient_quota" if openai else None,
        )
    if "line_expired" in faults:
        return unrun_row(provider, "expired", name)
    if "line_string_code" in faults:
        return unknown_error_row(provider, name)
    return ResultRow("missing", name, b"") if "line_missing" in faults else None
