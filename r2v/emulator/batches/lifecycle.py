"""Batch lifecycle: all requests are answered, refused or left out, and billed, when the batch is accepted.

Later polls only simulate progress. So an accepted batch runs exactly once, and a client that lost track of it has paid
for it, as at the real providers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from r2v.emulator.answer_bodies import EmulatedCompletion, answer_body, complete
from r2v.emulator.answers import EmulatedRequest
from r2v.emulator.batches.request_results import ResultRow, failed_row, succeeded_row, unknown_error_row, unrun_row
from r2v.emulator.bodies import ApiError, credit_error, parse_request
from r2v.emulator.ledger import Bill
from r2v.emulator.server_state import EmulatedBatch, ServerState
from r2v.storage.files import replacing

Entry = tuple[str, dict[str, Any]]
"""(custom_id, body) of a request of a batch."""


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
    provider = batch.provider
    name, body = entry
    try:
        request: EmulatedRequest | None = parse_request(provider, body, name)
    except ApiError as error:
        request, problem = None, error
    prompt = request.tokens_in if request else 0
    if index >= run_until(batch):
        return unrun_row(provider, "expired", name), None, prompt
    refused = _line_fault(provider, name, state.injector.draw("line", provider, "create"))
    if refused is not None:
        return refused, None, prompt
    if request is None:
        return failed_row(provider, name, problem), None, prompt
    refusal = state.refusal(provider, batch.endpoint, body)
    if "completed_null_output" in batch.faults or "completed_empty_output" in batch.faults:
        refusal = ApiError(400, "The model does not accept this request", code="invalid_value")
    if refusal is not None:
        return failed_row(provider, name, refusal), None, prompt
    completion, bill = complete_and_bill(state, request, batch=batch.id)
    return succeeded_row(provider, name, answer_body(completion, batch.endpoint, state.now())), bill, prompt


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
        cached_in=completion.cache.read,
        written_in=completion.cache.written,
        written_1h=completion.cache.written_1h,
    )
    return completion, bill


def _line_fault(provider: str, name: str, faults: frozenset[str]) -> ResultRow | None:
    errors = {
        "line_400": ApiError(400, "messages: the request is not valid", code="invalid_value"),
        "line_429": ApiError(429, "Rate limit reached for requests", code="rate_limit_exceeded"),
        "line_500": ApiError(500, "The server had an error while processing your request", code="server_error"),
        "line_overloaded": ApiError(529 if provider == "anthropic" else 503, "Overloaded"),
        "line_credit": credit_error(provider),
    }
    for fault in sorted(faults & errors.keys()):
        return failed_row(provider, name, errors[fault])
    if "line_expired" in faults:
        return unrun_row(provider, "expired", name)
    if "line_string_code" in faults:
        return unknown_error_row(provider, name)
    return ResultRow("missing", name, b"") if "line_missing" in faults else None
