"""Journal state: answered requests, the step of each batch, and the money spent.

    intent -> (file) -> sending -> created -> ended -> answer, failed ... -> applied
                           |  unknown: look for it in the provider's list until it is found or surely absent
                           `- absent: as before `sending`;  dropped: its requests are free again

A rerun resumes each batch at its last row. Only between `sending` and `created` may the provider have a batch that the
journal does not name: the run looks for it, and sends it again only after `reconcile_after` seconds without a match.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from r2v.errors import InputError
from r2v.llm.providers.provider_requests import ProviderRequest, RequestIdentity, RequestVerdict, reply_key
from r2v.llm.providers.spending.journal import JournalRow
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import from_json, to_json


@dataclass(kw_only=True)
class JournalBatch:
    """The journal's record of a provider batch. Times are Unix times in seconds."""

    key: str
    """R2V's name for it: {run8}-b{number}."""
    count: int
    sha256: str
    """Hash of its input file."""
    tokens: int
    """Estimated prompt tokens."""
    usd: float
    """Its worst case in USD."""
    began: float
    file_id: str | None = None
    sent_at: float | None = None
    """Time from which the create call may have been sent. None: it has not been sent, or `id` names its batch."""
    newest: str | None = None
    """The newest batch in the provider's list before the create call."""
    unknown_at: float | None = None
    """Time at which the create call ended without an answer. None: it has not ended in this process, and may have been
    cut off by the death of an earlier one."""
    id: str | None = None
    """The provider's id of it."""
    ended: bool = False
    requests: dict[str, ProviderRequest] = field(default_factory=dict)
    """Requests by custom_id that had no result when this process began."""
    accounted: set[str] = field(default_factory=set)
    """Custom_ids whose results are journaled."""


@dataclass(kw_only=True)
class JournalState:
    """The accumulated state of a journal's rows; `apply` adds each row that is written."""

    run: str = ""
    """Eight hex digits: a nonce in every custom_id, so that two runs never take each other's results for their own."""
    scope: dict[str, Any] = field(default_factory=dict)
    """The journal's owner."""
    answers: dict[RequestIdentity, int] = field(default_factory=dict)
    """Byte offset of each answer's row."""
    claims: set[str] = field(default_factory=set)
    """Reply keys of requests that no other process may send."""
    refused: dict[RequestIdentity, RequestVerdict] = field(default_factory=dict)
    """Requests that were refused for good, with their verdicts."""
    silent: Counter[RequestIdentity] = field(default_factory=Counter)
    """Number of answers without text per request."""
    batches: dict[str, JournalBatch] = field(default_factory=dict)
    """Batches by key that are not yet applied."""
    calls: dict[str, float] = field(default_factory=dict)
    """Direct calls in flight by custom_id, with their worst case in USD."""
    batch_ids: set[str] = field(default_factory=set)
    """Ids of the provider batches that this journal created."""
    next_attempt: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The first unused attempt of a (conversation, turn)."""
    body_of: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the body of each custom_id."""
    spent: float = 0.0
    """USD billed for received answers."""
    lost_usd: float = 0.0
    """Most USD that may be billed for requests whose answers were lost."""
    prompt_tokens: int = 0
    """Prompt tokens of all answers with usage."""
    cached_tokens: int = 0
    """Prompt tokens among them that were read from the provider's cache."""
    labels: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """USD that forwarded requests have spent or reserved, by label: a key, a session, a day."""
    labels_of: dict[str, list[str]] = field(default_factory=dict)
    """Labels of the forwarded requests in flight, by id."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of answers, lost calls and failures by kind."""
    num_batches: int = 0
    """Number of batches begun."""

    def apply(self, row: JournalRow, offset: int) -> None:
        """Add one row at this byte offset. Raise LookupError or TypeError for a row that cannot follow the others."""
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
                self._end_call(row)
                self.lost_usd += row["usd"]
                self.counts["lost"] += 1
            case "forward":
                self.calls[row["id"]] = row["usd"]
                self.labels_of[row["id"]] = row["labels"]
                for label in row["labels"]:
                    self.labels[label] += row["usd"]
            case "served":
                self._end_call(row)
                self.spent += row["usd"]
                self.counts["answered"] += 1
            case "open":
                self.run, self.scope = row["run"], dict(row["scope"])
            case "claims":
                self.claims = set(row["keys"])
            case "claim":
                self.claims.update(row["keys"])
            case "release":
                self.claims.difference_update(row["keys"])
            case _:
                _advance(self, self.batches[row["batch"]], row)

    def _end_call(self, row: JournalRow) -> None:
        """End a direct call or forwarded request: the amount in the row replaces its reservation."""
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
        # other failures are sent again by this process, so its claim stays
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
        """Return the request under an unused custom_id. Raise InputError as `register` does."""
        attempt = request.with_attempt(self.next_attempt[request.conversation, request.turn])
        self.register(attempt.custom_id, attempt.sha256)
        return attempt

    def register(self, custom_id: str, sha256: str) -> None:
        """Bind a custom_id to the body with this hash. Raise InputError if it is bound to another body."""
        if self.body_of.setdefault(custom_id, sha256) != sha256:
            raise InputError(
                f"custom_id {custom_id} belongs to another body in this journal, and a late result could answer the "
                "wrong request: start a new run"
            )
        _, conversation, turn, attempt = custom_id.split("-")
        request_of = conversation, int(turn)
        self.next_attempt[request_of] = max(self.next_attempt[request_of], int(attempt) + 1)

    @property
    def reserved(self) -> float:
        """Worst case in USD of everything in flight."""
        return sum(batch.usd for batch in self.batches.values()) + sum(self.calls.values())


def _advance(state: JournalState, batch: JournalBatch, row: JournalRow) -> None:
    """Move a batch to the step of this row."""
    match row["row"]:
        case "file":
            batch.file_id = row["id"]
        case "sending":
            batch.sent_at, batch.newest, batch.unknown_at = row["at"], row["newest"], None
        case "unknown":
            batch.unknown_at = row["at"]
        case "absent":
            batch.sent_at = batch.unknown_at = None
            # a file that the provider has deleted or refused is uploaded again
            batch.file_id = None if row.get("file_gone") else batch.file_id
        case "created":
            batch.id, batch.sent_at = row["id"], None
            state.batch_ids.add(row["id"])
        case "ended":
            batch.ended = True


def result_row(request: ProviderRequest, verdict: RequestVerdict, usd: float, batch: str | None) -> JournalRow:
    """Return the row of one result. batch: its key; None for a direct call."""
    common: dict[str, Any] = {
        "id": request.custom_id,
        "sha256": request.sha256,
        "batch": batch,
        "usd": round(usd, 10),
    }
    if verdict.kind == "ok":
        tokens = None if verdict.tokens is None else verdict.tokens.nonzero
        optional: dict[str, Any] = {} if verdict.message is None else {"message": to_json(verdict.message)}
        optional |= {} if verdict.reply_id is None else {"reply": verdict.reply_id}
        return {"row": "answer"} | common | {"text": verdict.text, "cut": verdict.cut, "tokens": tokens} | optional
    outcome = {"outcome": verdict.outcome} if verdict.kind == "fatal" else {}
    return {"row": "failed"} | common | {"kind": verdict.kind, "reason": verdict.reason} | outcome


def verdict_of(row: JournalRow) -> RequestVerdict:
    """Return the verdict in the row of an answer or a refusal."""
    if row["row"] == "failed":
        return RequestVerdict(kind=row["kind"], reason=row["reason"], outcome=row.get("outcome", "refused"))
    tokens = None if row["tokens"] is None else TokenCounts(**row["tokens"])
    message = from_json(row["message"]) if "message" in row else None
    return RequestVerdict(
        kind="ok", text=row["text"], cut=row["cut"], tokens=tokens, message=message, reply_id=row.get("reply")
    )
