"""Answering: a client's request goes to the model that the decision names.

A server without a bundle has one model, the LLM. With a bundle, requests for `r2v` are decided at each step; those that
name a model of the provider, as for titles, go to the LLM without a decision.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any, TypeVar

from r2v.config import ServeConfig
from r2v.log import logger
from r2v.serve.accounts.books import CapReached
from r2v.serve.accounts.metrics import Metrics
from r2v.serve.forwarding import Forwarder, LLMDown, Receive, Refused, Send, by_cap, send_whole
from r2v.serve.pair.pair import ServedDecision, ServedPair
from r2v.serve.pair.small import rendered
from r2v.serve.pair.state import said_hash
from r2v.serve.request import ClientRequest
from r2v.serve.sessions import Sessions
from r2v.serve.transport.body import RequestBody
from r2v.serve.transport.endpoints import Endpoint
from r2v.serve.transport.headers import Headers
from r2v.serve.turns import ServedTurn, TurnLog

T = TypeVar("T")
LLM_NAMES = ("llm", "r2v")
"""Names by which a client asks for the server's LLM; `r2v` is the pair where a bundle is served."""


class Answerer:
    """Answers requests. pair: None without a bundle."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ServeConfig,
        forwarder: Forwarder,
        sessions: Sessions,
        turns: TurnLog,
        metrics: Metrics,
        pair: ServedPair | None,
    ) -> None:
        self._endpoint, self._settings, self._forwarder = endpoint, settings, forwarder
        self._sessions, self._turns, self._metrics, self.pair = sessions, turns, metrics, pair
        self.in_flight: set[asyncio.Task[Any]] = set()
        self.outside: Counter[str] = Counter()
        """Requests outside the bundle's domain by reason."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of models that a client may ask for; the provider's others pass too."""
        names = LLM_NAMES if self.pair is None else ("llm", *self.pair.model_names)
        return (*names, self._endpoint.model)

    def model_for(self, body: RequestBody) -> str:
        """Return the model to ask of the LLM's provider: the server's for R2V's own names, else the client's."""
        names = body.model in LLM_NAMES or self._threshold(body) is not None
        return self._endpoint.model if self._settings.any_model or names else body.model

    def _threshold(self, body: RequestBody) -> float | None:
        """Return the threshold at which a request is decided; None if it goes to the LLM without a decision."""
        if self.pair is None:
            return None
        named = self.pair.threshold_of(body.model)
        routed = named is None and self._settings.any_model and body.model != "llm"
        return self.pair.threshold_of("r2v") if routed else named

    async def decide(self, request: ClientRequest) -> ServedDecision:
        """Decide a request without answering it. Raises Refused."""
        threshold = self._threshold(request.body)
        assert self.pair is not None, "the caller checks"
        if threshold is None:
            threshold = self.pair.threshold_of("r2v") or 0.0
        session = self._sessions.find(request.headers, request.body.values, request.wire, key=request.key_name)
        return await self._decided(self.pair.decide(request, session, threshold))

    async def answer(self, request: ClientRequest, receive: Receive, send: Send) -> None:
        """Answer a request. Raises Refused before anything was sent to the client."""
        task = asyncio.current_task()
        assert task is not None
        self.in_flight.add(task)
        self._metrics.add("r2v_open_requests")
        try:
            await self._answer(request, receive, send)
        finally:
            self.in_flight.discard(task)
            self._metrics.add("r2v_open_requests", -1)

    async def _answer(self, request: ClientRequest, receive: Receive, send: Send) -> None:
        body, threshold = request.body, self._threshold(request.body)
        model = self.model_for(body)
        if threshold is None:
            self._forwarder.require_wire(request.wire)
        rate = self._forwarder.rate(model)
        session = self._sessions.find(request.headers, body.values, request.wire, key=request.key_name)
        session.turns += 1
        if session.turns == 1:
            logger.info("  session began: explain=%s", f"r2v explain {shlex.quote(session.name)}")
        turn = ServedTurn(request=request, session=session, number=session.turns, model=model)
        reply = b""
        try:
            if threshold is not None and self.pair is not None:
                turn.decision = await self._decided(self.pair.decide(request, session, threshold))
            decision = turn.decision
            if decision is not None and not self._settings.shadow:
                # before the reply, because a client may retry at once and must get the same author
                session.decisions[request.conversation] = decision.source
            # reasons may quote the client: the limit bounds the memory
            if decision is not None and decision.step is None and len(self.outside) < 100:
                self.outside[decision.reason] += 1
            if decision is not None and decision.source == "small" and not self._settings.shadow:
                reply = await self._small(turn, decision, send)
                return
            if decision is not None and body.model == "small":
                raise Refused(400, f"the small model may not answer this: {decision.reason}")
            self._forwarder.require_wire(request.wire)
            try:
                reply = await self._forwarder.forward(turn, rate, _headers("llm", decision), receive, send)
            except LLMDown:
                # nothing was sent to the client yet, so another author may still answer
                instead = await self._instead(turn, threshold)
                if instead is None:
                    raise
                reply = await self._small(turn, instead, send)
        except Refused as refused:
            turn.status, turn.trouble = refused.status, turn.trouble or str(refused)
            raise
        finally:
            turn.saved = self.saved(turn)
            self._turns.write(turn, reply)

    async def _decided(self, decision: Awaitable[T]) -> T:
        """Await a decision. Raises Refused if a cap does not cover the request to the small model."""
        try:
            return await decision
        except CapReached as error:
            raise by_cap(error) from None

    async def _instead(self, turn: ServedTurn, threshold: float | None) -> ServedDecision | None:
        if self.pair is None or threshold is None or self._settings.llm_down != "small" or self._settings.shadow:
            return None
        turn.decision = await self._decided(self.pair.instead(turn.request, turn.session, threshold))
        return turn.decision

    async def _small(self, turn: ServedTurn, decision: ServedDecision, send: Send) -> bytes:
        """Send the small model's turn to the client and return its body."""
        proposal = decision.proposal
        assert proposal is not None, "the small model acts by its proposal"
        turn.decision, turn.source, turn.trouble = decision, "small", ""
        turn.usd, turn.tokens = proposal.usd, proposal.tokens
        turn.status, turn.first_byte = 200, time.monotonic() - turn.began
        turn.answered_by, turn.reply_id = proposal.reply.model, proposal.wire_reply.id
        if not proposal.wire_reply.message.calls:  # a turn with calls is recognised by their ids
            turn.text_hash = said_hash(proposal.wire_reply.message.text)
        kind, content = rendered(turn.request, proposal.wire_reply)
        headers = [(b"content-type", kind.encode()), *_headers("small", decision)]
        if (saved := self.saved(turn)) is not None:
            headers.append((b"x-r2v-saved-usd", b"%.6f" % saved))
        await send_whole(send, 200, headers, content)
        turn.whole = True
        return content

    def saved(self, turn: ServedTurn) -> float | None:
        """Return the USD that asking the small model saved: the LLM's list price of its tokens if it acted, less the
        bill for the proposal, played or not. None if a price is unknown, or it was not asked."""
        proposal = None if turn.decision is None else turn.decision.proposal
        rate = self._endpoint.rate(self._endpoint.model)
        if proposal is None or proposal.usd is None or rate is None:
            return None
        instead = rate.listed(proposal.tokens) if turn.source == "small" else 0.0
        return round(instead - proposal.usd, 6)


def _headers(source: str, decision: ServedDecision | None) -> Headers:
    headers = [(b"x-r2v-source", source.encode())]
    if decision is not None:
        # a reason may quote a client or an endpoint: a line break in it would begin a header of their choice
        reason = "".join(letter if " " <= letter <= "~" else "?" for letter in decision.reason)
        headers.append((b"x-r2v-reason", reason.encode()))
        if decision.threshold is not None:
            headers.append((b"x-r2v-threshold", b"%.6f" % decision.threshold))
        if decision.score is not None:
            headers.append((b"x-r2v-score", b"%.6f" % decision.score))
    return headers
