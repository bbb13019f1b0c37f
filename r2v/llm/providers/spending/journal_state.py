"""What a journal's rows come to: who was answered, which batches are where, what was spent.

    intent -> (file) -> sending -> created -> ended -> answer, failed ... -> applied
                           |  unknown: look for it in the provider's list until it is found or known to be absent
                           `- absent: as before `sending`;  dropped: its questions are free again

A rerun takes each batch up at its last row. Only between `sending` and `created` does it not know what the provider
has; there it looks, and sends again only after `reconcile_after` has passed without the batch being listed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from r2v.errors import InputError
from r2v.llm.providers.prices import Tokens
from r2v.llm.providers.provider_requests import Ask, Question, Verdict
from r2v.llm.providers.spending.journal import Row


@dataclass(kw_only=True)
class Batch:
    """A provider batch as the journal knows it. Times are seconds of the epoch."""

    key: str
    count: int
    sha256: str
    tokens: int
    usd: float
    """The most that it can cost."""
    began: float
    file_id: str | None = None
    sent_at: float | None = None
    """The create call may have gone out then; None: it surely did not, or `id` tells what came of it."""
    newest: str | None = None
    """The newest batch that was listed before."""
    unknown_at: float | None = None
    """When it went out and nobody said what came of it; None: this process, or its death, knows no better."""
    id: str | None = None
    ended: bool = False
    asks: dict[str, Ask] = field(default_factory=dict)
    """By custom_id; those that were not accounted for when this process began."""
    settled: set[str] = field(default_factory=set)
    """Custom_ids that are accounted for."""


@dataclass(kw_only=True)
class Book:
    """The sums of a journal. `note` keeps it true to each row that is written."""

    run: str
    answers: dict[Question, int] = field(default_factory=dict)
    """Where in the journal an answer stands."""
    refused: dict[Question, str] = field(default_factory=dict)
    """Questions that were refused for good, and why."""
    batches: dict[str, Batch] = field(default_factory=dict)
    """Those not yet applied."""
    calls: dict[str, float] = field(default_factory=dict)
    """Direct calls under way, and the most they can cost."""
    ids: set[str] = field(default_factory=set)
    """Provider batches that are ours."""
    tries: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The next try of a (conversation, turn)."""
    names: dict[str, str] = field(default_factory=dict)
    """What each custom_id asked."""
    spent: float = 0.0
    """USD that the provider bills for what was seen."""
    lost_usd: float = 0.0
    """USD that it may bill for direct calls whose answers were never seen, at most."""
    prompt_tokens: int = 0
    """Of all answers whose provider said."""
    cached_tokens: int = 0
    """Those of them that were read from the provider's prompt cache."""
    counts: Counter[str] = field(default_factory=Counter)
    made: int = 0
    """Batches begun."""

    def note(self, row: Row, place: int) -> None:
        """Take in one row."""
        match row["row"]:
            case "intent":
                self.made += 1
                self.batches[row["batch"]] = Batch(
                    key=row["batch"],
                    count=row["count"],
                    sha256=row["sha256"],
                    tokens=row["tokens"],
                    usd=row["usd"],
                    began=row["at"],
                )
            case "answer" | "failed":
                self._line(row, place)
            case "applied" | "dropped":
                self.batches.pop(row["batch"], None)
            case "call":
                self.calls[row["id"]] = row["usd"]
                self.name(row["id"], row["sha256"])
            case "lost":
                self.calls.pop(row["id"], None)
                self.lost_usd += row["usd"]
                self.counts["lost"] += 1
            case "open":
                pass
            case _:
                self._batch(self.batches[row["batch"]], row)

    def _batch(self, batch: Batch, row: Row) -> None:
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
                self.ids.add(row["id"])
            case "ended":
                batch.ended = True

    def _line(self, row: Row, place: int) -> None:
        conversation, turn, _ = row["id"].split("-")[1:]
        question = (conversation, int(turn), row["sha256"])
        self.name(row["id"], row["sha256"])
        self.calls.pop(row["id"], None)
        if row["batch"] in self.batches:
            self.batches[row["batch"]].settled.add(row["id"])
        self.spent += row["usd"]
        if row["row"] == "answer":
            self.answers[question] = place
            self.counts["answered"] += 1
            tokens = Tokens(**(row["tokens"] or {}))
            self.prompt_tokens += tokens.input
            self.cached_tokens += tokens.cached
        else:
            self.counts[row["kind"]] += 1
            if row["kind"] == "fatal":
                self.refused[question] = row["reason"]

    def claim(self, ask: Ask) -> Ask:
        """The ask under a name that no other body has had. Raises InputError for a name that has."""
        named = ask.again(self.tries[ask.conversation, ask.turn])
        self.name(named.custom_id, named.sha256)
        return named

    def name(self, custom_id: str, sha256: str) -> None:
        """Keep what a custom_id stands for. Raises InputError where it stands for another body."""
        if self.names.setdefault(custom_id, sha256) != sha256:
            raise InputError(
                f"custom_id {custom_id} stands for another body in this journal; one name, one question: "
                "start a new run"
            )
        _, conversation, turn, attempt = custom_id.split("-")
        place = conversation, int(turn)
        self.tries[place] = max(self.tries[place], int(attempt) + 1)

    @property
    def reserved(self) -> float:
        """USD that what is under way can cost at most."""
        return sum(batch.usd for batch in self.batches.values()) + sum(self.calls.values())


def line_row(ask: Ask, verdict: Verdict, usd: float, batch: str | None) -> Row:
    """The row of one line of results."""
    told: dict[str, Any] = {"id": ask.custom_id, "sha256": ask.sha256, "batch": batch, "usd": round(usd, 10)}
    if verdict.kind == "ok":
        tokens = None if verdict.tokens is None else {k: v for k, v in asdict(verdict.tokens).items() if v}
        return {"row": "answer"} | told | {"text": verdict.text, "cut": verdict.cut, "tokens": tokens}
    return {"row": "failed"} | told | {"kind": verdict.kind, "reason": verdict.reason}


def verdict_of(row: Row) -> Verdict:
    """The verdict that an answer's row keeps."""
    tokens = None if row["tokens"] is None else Tokens(**row["tokens"])
    return Verdict(kind="ok", text=row["text"], cut=row["cut"], tokens=tokens)
