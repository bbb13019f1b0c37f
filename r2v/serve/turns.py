"""Turns: the state of one answered request, and its line in the log, its record and its metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from r2v.serve.accounts.metrics import Metrics
from r2v.serve.accounts.traffic import Recorder, TrafficLog
from r2v.serve.pair.pair import ServedDecision
from r2v.serve.request import ClientRequest
from r2v.serve.sessions import AgentSession, Sessions
from r2v.wire.exchange import TokenCounts


@dataclass(kw_only=True)
class ServedTurn:
    """One request and its answer so far."""

    request: ClientRequest
    session: AgentSession
    number: int
    model: str
    """Model of the LLM's provider for this request, asked or not."""
    decision: ServedDecision | None = None
    """None if no pair is served, or the client named a model of the provider."""
    source: str = "llm"
    began: float = field(default_factory=time.monotonic)
    changed: tuple[str, ...] = ()
    """Fields of the client's request that were changed."""
    status: int = 0
    first_byte: float | None = None
    """Seconds to the reply's headers."""
    at_most: float = 0.0
    """USD reserved."""
    usd: float | None = None
    """USD billed for the model that acted; None if unknown."""
    saved: float | None = None
    """USD that asking the small model saved (`Answerer.saved`)."""
    tokens: TokenCounts | None = None
    answered_by: str = ""
    reply_id: str = ""
    reply_sha256: str = ""
    text_hash: str | None = None
    """Hash of the small model's text (`said_hash`), by which its turn is recognised in later requests."""
    whole: bool = False
    """True if the client was sent a whole reply."""
    client_left: bool = False
    trouble: str = ""


class TurnLog:
    """Writer of turns to the traffic log, the record and the metrics. recorder: None if no text is recorded."""

    def __init__(self, traffic: TrafficLog, sessions: Sessions, metrics: Metrics, recorder: Recorder | None) -> None:
        self._traffic, self._sessions, self._metrics, self._recorder = traffic, sessions, metrics, recorder

    def write(self, turn: ServedTurn, reply: bytes) -> None:
        """Write an ended turn. reply: the body that was sent to the client."""
        request, session = turn.request, turn.session
        if turn.whole:
            self._sessions.answered(request.conversation, key=request.key_name)
            if turn.decision is not None and turn.decision.source == turn.source:
                session.decisions[request.conversation] = turn.source
            if turn.text_hash is not None:
                session.small_turns.add(turn.text_hash)
        row = self._row(turn)
        self._traffic.append(row)
        if self._recorder is not None:
            named = ("session", "key", "turn", "wire", "stream", "model", "answered_by", "whole", "usd", "tokens")
            about = {name: row[name] for name in (*named, "source")}
            self._recorder.write(session.name, about, request.body.plain, reply)
        self._count(turn, row)

    def _row(self, turn: ServedTurn) -> dict[str, Any]:
        request, decision = turn.request, turn.decision
        row = {
            "kind": "turn",
            "at": round(time.time(), 3),
            "session": turn.session.name,
            "by": turn.session.source,
            "turn": turn.number,
            "key": request.key_name,
            "wire": request.wire,
            "stream": request.body.streams,
            "model": turn.model,
            "source": turn.source,
            "changed": list(turn.changed),
            "conversation": request.conversation,
            "status": turn.status,
            "usd": turn.usd,
            "at_most": turn.at_most,
            "saved": turn.saved,
            "tokens": None if turn.tokens is None else turn.tokens.nonzero,
            "answered_by": turn.answered_by,
            "reply": turn.reply_sha256,
            "reply_id": turn.reply_id,
            "whole": turn.whole,
            "client_left": turn.client_left,
            "first_byte": None if turn.first_byte is None else round(turn.first_byte, 4),
            "seconds": round(time.monotonic() - turn.began, 4),
        }
        row |= {"said": turn.text_hash} if turn.text_hash is not None else {}
        row |= {"trouble": turn.trouble} if turn.trouble else {}
        return row | ({"decision": _decision(decision)} if decision is not None else {})

    def _count(self, turn: ServedTurn, row: Mapping[str, Any]) -> None:
        metrics = self._metrics
        metrics.add("r2v_requests_total", wire=turn.request.wire, source=turn.source, status=str(turn.status))
        metrics.add("r2v_seconds_total", row["seconds"])
        metrics.add("r2v_client_left_total", float(turn.client_left))
        if turn.usd is None:
            metrics.add("r2v_usd_total", turn.at_most, kind="unknown")
        else:
            metrics.add("r2v_usd_total", turn.usd, kind="billed")
        for kind, count in (row["tokens"] or {}).items():
            metrics.add("r2v_tokens_total", count, kind=kind)


def _decision(decision: ServedDecision) -> dict[str, Any]:
    """Return a decision with the cost of the small model's proposal, played or not."""
    fields = decision.logged
    if decision.proposal is not None:
        bill = decision.proposal.bill
        cost = {"cost": round(bill.cost, 10), "usd": decision.proposal.usd, "router": round(decision.router_cost, 10)}
        fields["small"] = cost
    return fields
