"""Running a batch: every request is answered, refused or left, and billed, when the batch is accepted.

What polls show later is only how far the batch claims to be. So an accepted batch is always run once, and a
client that lost sight of it has paid for it, as at the real providers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from r2v.emulator.answers import Question
from r2v.emulator.api.bodies import CREDIT, answer_body, read_question, say
from r2v.emulator.batches.request_results import LINE_FAULTS, Row, answered, failed, gone, unheard_of
from r2v.emulator.ledger import Bill
from r2v.emulator.server_state import Batch, Site
from r2v.storage.files import replacing


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a batch."""

    custom_id: str
    body: dict[str, Any]


def accept(site: Site, batch: Batch, entries: Iterable[Entry]) -> None:
    """Run the batch and make it exist: rows, then bills, then its record."""
    counts: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    drafts = site.folder / "batches" / f"{batch.id}.bills"
    with replacing(site.rows_path(batch.id)) as rows, drafts.open("wb") as bills:
        for index, entry in enumerate(entries):
            row, bill, prompt = _run(site, batch, index, entry)
            rows.write(row.encode())
            counts[row.kind] += 1
            tokens["prompt"] += prompt
            if bill is not None:
                tokens.update({"in": bill.tokens_in, "cached": bill.cached_in, "out": bill.tokens_out})
                bills.write(json.dumps(vars(bill)).encode() + b"\n")
    batch.counts, batch.tokens = dict(counts), dict(tokens)
    with drafts.open("rb") as bills:
        site.ledger.bill(Bill(**json.loads(line)) for line in bills)
    drafts.unlink()
    site.save_batch(batch)


def run_until(batch: Batch) -> int:
    """How many of a batch's requests are run before it expires."""
    if "expired_none_done" in batch.faults or "expired_no_files" in batch.faults:
        return 0
    return batch.total // 2 if "expired_half_done" in batch.faults else batch.total


def _run(site: Site, batch: Batch, index: int, entry: Entry) -> tuple[Row, Bill | None, int]:
    """One request: its row, its bill where it was answered, the tokens of its prompt."""
    provider, name = batch.provider, entry.custom_id
    try:
        question: Question | None = read_question(provider, entry.body, name)
    except ValueError as error:
        question, problem = None, str(error)
    prompt = question.tokens_in if question else 0
    if index >= run_until(batch):
        return gone(provider, "expired", name), None, prompt
    refused = _line_fault(provider, name, site.injector.draw("line", provider, "create"))
    if refused is not None:
        return refused, None, prompt
    if question is None:
        return failed(provider, name, 400, problem), None, prompt
    if "completed_null_output" in batch.faults or "completed_empty_output" in batch.faults:
        return failed(provider, name, 400, "The model does not accept this request", code="invalid_value"), None, prompt
    body, bill = answer(site, question, path=batch.endpoint, batch=batch.id)
    return answered(provider, name, body), bill, prompt


def answer(site: Site, question: Question, *, path: str, batch: str | None) -> tuple[dict[str, Any], Bill]:
    """One request's answer and its bill, not booked yet."""
    faults = site.injector.draw("answer", question.provider, "create" if batch else "sync")
    said = say(question, site.answer, faults, site.cached(question))
    bill = Bill(
        provider=question.provider,
        mode="batch" if batch else "sync",
        batch=batch,
        custom_id=question.custom_id,
        model=question.model,
        body_sha256=question.sha256,
        tokens_in=said.tokens_in,
        tokens_out=said.tokens_out,
        cached_in=said.cached,
    )
    return answer_body(said, path, site.now()), bill


def _line_fault(provider: str, name: str, faults: frozenset[str]) -> Row | None:
    for fault in sorted(faults & LINE_FAULTS.keys()):
        status, message, code = LINE_FAULTS[fault]
        return failed(provider, name, status, message, code=code)
    if "line_overloaded" in faults:
        return failed(provider, name, 529 if provider == "anthropic" else 503, "Overloaded")
    if "line_credit" in faults:
        openai = provider == "openai"
        return failed(
            provider,
            name,
            429 if openai else 400,
            CREDIT[provider],
            code="insufficient_quota",
            kind="insufficient_quota" if openai else None,
        )
    if "line_expired" in faults:
        return gone(provider, "expired", name)
    if "line_string_code" in faults:
        return unheard_of(provider, name)
    return Row("missing", name, b"") if "line_missing" in faults else None
