"""The journal's state: which requests are answered, which batches are where, and what was spent.

    intent -> (file) -> sending -> created -> ended -> answer, failed ... -> applied
                           |  unknown: look for it in the provider's list until it is found or known to be absent
                           `- absent: as before `sending`;  dropped: its requests are free again

A rerun resumes each batch at its last row. Only between `sending` and `created` is it unknown what the provider has;
there the run looks, and sends again only after `reconcile_after` has passed without the batch being listed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from typing import Any

from r2v.errors import InputError
from r2v.llm.providers.provider_requests import ProviderRequest, RequestIdentity, RequestVerdict, reply_key
from r2v.llm.providers.spending.journal import JournalRow
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import from_json, to_json


@dataclass(kw_only=True)
class JournalBatch:
    """A provider batch as the journal knows it. Times are seconds of the epoch."""

    key: str
    """Our name for it: {run8}-b{number}."""
    count: int
    sha256: str
    """Of its input file."""
    tokens: int
    """Prompt tokens, about."""
    usd: float
    """The most that it can cost."""
    began: float
    file_id: str | None = None
    sent_at: float | None = None
    """The create call may have gone out then. None: it surely has not, or `id` says what was created."""
    newest: str | None = None
    """The newest batch that was listed before the create call."""
    unknown_at: float | None = None
    """When the create call ended without an answer. None: it has not ended in this process; it may have been cut off
    by the death of an earlier one."""
    id: str | None = None
    """The provider's name for it."""
    ended: bool = False
    requests: dict[str, ProviderRequest] = field(default_factory=dict)
    """By custom_id; those that were not accounted for when this process began."""
    accounted: set[str] = field(default_factory=set)
    """Custom_ids whose results are journaled."""


@dataclass(kw_only=True)
class JournalState:
    """What the rows of a journal add up to. `apply` keeps it true to each row that is written."""

    run: str
    """Eight hex digits: a nonce in every custom_id, so that two runs never take each other's results for their own."""
    answers: dict[RequestIdentity, int] = field(default_factory=dict)
    """Byte offset in the journal at which an answer stands."""
    claims: set[str] = field(default_factory=set)
    """Reply keys of requests that no other process is to ask."""
    refused: dict[RequestIdentity, RequestVerdict] = field(default_factory=dict)
    """Requests that were refused for good, and how."""
    silent: Counter[RequestIdentity] = field(default_factory=Counter)
    """How often a request has been answered without text."""
    batches: dict[str, JournalBatch] = field(default_factory=dict)
    """Those not yet applied."""
    calls: dict[str, float] = field(default_factory=dict)
    """Direct calls in flight, and the most USD that they can cost."""
    batch_ids: set[str] = field(default_factory=set)
    """Provider batches that are known to be ours."""
    next_attempt: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The first unused attempt of a (conversation, turn)."""
    body_of: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of the body that each custom_id stands for."""
    spent: float = 0.0
    """USD that the provider bills for the answers that came."""
    lost_usd: float = 0.0
    """USD that it may bill, at most, for direct calls whose answers never came."""
    prompt_tokens: int = 0
    """Of all answers with a usage."""
    cached_tokens: int = 0
    """Those of them that were read from the provider's prompt cache."""
    labels: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """USD that forwarded requests have spent or hold reserved, by label: a key, a session, a day."""
    labels_of: dict[str, list[str]] = field(default_factory=dict)
    """Labels of the forwarded requests in flight."""
    counts: Counter[str] = field(default_factory=Counter)
    num_batches: int = 0
    """Batches begun."""

    def apply(self, row: JournalRow, offset: int) -> None:
        """Take in one row that stands at this byte offset."""
        match row["row"]:
            case "intent":
                self.num_batches += 1
                self.batches[row["batch"]] = JournalBatch(
                    key=row["batch"],
                    count=row["count"],
                    sha256=row["sha256"],
                    tokens=row["tokens"],
                    usd=row["usd"],
                    began=row["at"],
                )
            case "answer" | "failed":
                self._apply_result(row, offset)
            case "applied" | "dropped":
                self.batches.pop(row["batch"], None)
            case "call":
                self.calls[row["id"]] = row["usd"]
                self.register(row["id"], row["sha256"])
            case "lost":
                self._settle(row)
                self.lost_usd += row["usd"]
                self.counts["lost"] += 1
            case "forward":
                self.calls[row["id"]] = row["usd"]
                self.labels_of[row["id"]] = row["labels"]
                for label in row["labels"]:
                    self.labels[label] += row["usd"]
            case "served":
                self._settle(row)
                self.spent += row["usd"]
                self.counts["answered"] += 1
            case "open":
                pass
            case "claims":
                self.claims = set(row["keys"])
            case "claim":
                self.claims.update(row["keys"])
            case "release":
                self.claims.difference_update(row["keys"])
            case _:
                _advance(self, self.batches[row["batch"]], row)

    def _settle(self, row: JournalRow) -> None:
        """End a call or a forwarded request: the reservation makes way for the amount of the row."""
        reserved = self.calls.pop(row["id"], 0.0)
        for label in self.labels_of.pop(row["id"], ()):
            self.labels[label] += row["usd"] - reserved

    def _apply_result(self, row: JournalRow, offset: int) -> None:
        conversation, turn, _ = row["id"].split("-")[1:]
        identity = (conversation, int(turn), row["sha256"])
        self.register(row["id"], row["sha256"])
        self.calls.pop(row["id"], None)
        if row["batch"] in self.batches:
            self.batches[row["batch"]].accounted.add(row["id"])
        self.spent += row["usd"]
        if row["row"] == "answer" or row["kind"] == "fatal":
            self.claims.discard(reply_key(identity))
        if row["row"] == "answer":
            self.answers[identity] = offset
            self.counts["answered"] += 1
            tokens = TokenCounts(**(row["tokens"] or {}))
            self.prompt_tokens += tokens.input
            self.cached_tokens += tokens.cached
        else:
            self.counts[row["kind"]] += 1
            if row["kind"] == "silent":
                self.silent[identity] += 1
            if row["kind"] == "fatal":
                self.refused[identity] = verdict_of(row)

    def new_attempt(self, request: ProviderRequest) -> ProviderRequest:
        """The request under a custom_id that was never used. Raises InputError as `register` does."""
        attempt = request.with_attempt(self.next_attempt[request.conversation, request.turn])
        self.register(attempt.custom_id, attempt.sha256)
        return attempt

    def register(self, custom_id: str, sha256: str) -> None:
        """Remember which body a custom_id stands for. Raises InputError where it stands for another one."""
        if self.body_of.setdefault(custom_id, sha256) != sha256:
            raise InputError(
                f"custom_id {custom_id} stands for another body in this journal; one custom_id, one request: "
                "start a new run"
            )
        _, conversation, turn, attempt = custom_id.split("-")
        request_of = conversation, int(turn)
        self.next_attempt[request_of] = max(self.next_attempt[request_of], int(attempt) + 1)

    @property
    def reserved(self) -> float:
        """USD that everything in flight can cost at most."""
        return sum(batch.usd for batch in self.batches.values()) + sum(self.calls.values())


def _advance(state: JournalState, batch: JournalBatch, row: JournalRow) -> None:
    """Move a batch to the step that this row is about."""
    match row["row"]:
        case "file":
            batch.file_id = row["id"]
        case "sending":
            batch.sent_at, batch.newest, batch.unknown_at = row["at"], row["newest"], None
        case "unknown":
            batch.unknown_at = row["at"]
        case "absent":
            batch.sent_at = batch.unknown_at = None
            batch.file_id = None if row.get("file_gone") else batch.file_id
        case "created":
            batch.id, batch.sent_at = row["id"], None
            state.batch_ids.add(row["id"])
        case "ended":
            batch.ended = True


_COUNTS = tuple(item.name for item in fields(TokenCounts))


def result_row(request: ProviderRequest, verdict: RequestVerdict, usd: float, batch: str | None) -> JournalRow:
    """The row of one result; `batch` None: of a direct call."""
    common: dict[str, Any] = {
        "id": request.custom_id,
        "sha256": request.sha256,
        "batch": batch,
        "usd": round(usd, 10),
    }
    if verdict.kind == "ok":
        counts = verdict.tokens
        tokens = None if counts is None else {name: v for name in _COUNTS if (v := getattr(counts, name))}
        said: dict[str, Any] = {} if verdict.message is None else {"message": to_json(verdict.message)}
        said |= {} if verdict.reply_id is None else {"reply": verdict.reply_id}
        return {"row": "answer"} | common | {"text": verdict.text, "cut": verdict.cut, "tokens": tokens} | said
    outcome = {"outcome": verdict.outcome} if verdict.kind == "fatal" else {}
    return {"row": "failed"} | common | {"kind": verdict.kind, "reason": verdict.reason} | outcome


def verdict_of(row: JournalRow) -> RequestVerdict:
    """The verdict that the row of an answer or a refusal keeps."""
    if row["row"] == "failed":
        return RequestVerdict(kind=row["kind"], reason=row["reason"], outcome=row.get("outcome", "refused"))
    tokens = None if row["tokens"] is None else TokenCounts(**row["tokens"])
    message = from_json(row["message"]) if "message" in row else None
    return RequestVerdict(
        kind="ok", text=row["text"], cut=row["cut"], tokens=tokens, message=message, reply_id=row.get("reply")
    )
