"""Forwarding: one request to the LLM, and its reply to the client as it arrives.

The request is booked at its worst case before it leaves and settled when its reply ends. A reply whose client has left
is read on for its usage, because the provider bills it. Nothing is retried: clients do that, and a proxy that retries
too would multiply their attempts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from r2v.config import ServeConfig
from r2v.llm.providers.prices import Rate
from r2v.log import logger
from r2v.serve.body import RequestBody
from r2v.serve.books import Books, CapReached, Reservation
from r2v.serve.endpoints import PATHS, Endpoint
from r2v.serve.headers import Headers, to_client, to_provider
from r2v.serve.metrics import Metrics
from r2v.serve.recording import Recorder
from r2v.serve.replies import PassingReply
from r2v.serve.sessions import AgentSession, Sessions, prefix
from r2v.serve.traffic import TrafficLog
from r2v.serve.upstream import BrokenOff, NotSent, Upstream, decoded, decoder
from r2v.wire.errors import read_error, write_error_event
from r2v.wire.exchange import TokenCounts, first_number
from r2v.wire.stream_facts import StreamFacts, WireName

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LLM_NAMES = ("llm", "r2v")
"""Names by which a client asks for the server's LLM."""
_LONGEST_OUTPUT = 131_072
"""Tokens of a reply that a request without a limit is booked at, where the model's context is not known."""
_HIDDEN_PROMPT = 1024
"""Tokens that providers add to a prompt with tools, at most."""
_LONGEST_BODY = 64 << 20
"""Bytes of a reply that does not stream."""


class Refused(Exception):
    """A request that is answered by the server itself. retry: a client may send it again."""

    def __init__(self, status: int, message: str, *, code: str | None = None, retry: bool = False) -> None:
        super().__init__(message)
        self.status, self.code, self.retry = status, code, retry


@dataclass(frozen=True, kw_only=True)
class ClientRequest:
    """A client's request, read and checked."""

    wire: WireName
    query: str
    headers: Headers = field(repr=False)
    body: RequestBody
    key_name: str
    """Name of the key that it came with."""


@dataclass(kw_only=True)
class _Turn:
    """One forwarded request on its way, for its line in the log."""

    request: ClientRequest
    session: AgentSession
    number: int
    conversation: str
    changed: tuple[str, ...]
    began: float
    status: int = 0
    first_byte: float | None = None
    at_most: float = 0.0
    """USD reserved."""
    usd: float | None = None
    """USD billed; None if that is unknown."""
    tokens: TokenCounts | None = None
    client_left: bool = False
    trouble: str = ""


class Forwarder:
    """Forwards requests to one endpoint. recorder: None if no text is recorded."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ServeConfig,
        upstream: Upstream,
        books: Books,
        traffic: TrafficLog,
        sessions: Sessions,
        metrics: Metrics,
        recorder: Recorder | None,
    ) -> None:
        self._endpoint, self._settings, self._upstream = endpoint, settings, upstream
        self._books, self._traffic, self._sessions = books, traffic, sessions
        self._metrics, self._recorder = metrics, recorder
        self.in_flight: set[asyncio.Task[Any]] = set()
        self._unpriced: set[str] = set()

    async def forward(self, request: ClientRequest, receive: Receive, send: Send) -> None:
        """Answer a request by the LLM. Raises Refused before anything was sent to the client."""
        task = asyncio.current_task()
        assert task is not None
        self.in_flight.add(task)
        self._metrics.add("r2v_open_requests")
        try:
            await self._forward(request, receive, send)
        finally:
            self.in_flight.discard(task)
            self._metrics.add("r2v_open_requests", -1)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of models that a client may ask for; the provider's others pass too."""
        return (*LLM_NAMES, self._endpoint.model)

    def model_for(self, body: RequestBody) -> str:
        """Return the model to ask: the server's LLM if the client named it by a name of R2V's, else the client's."""
        replaces = self._settings.any_model or body.model in LLM_NAMES
        return self._endpoint.model if replaces else body.model

    async def _forward(self, request: ClientRequest, receive: Receive, send: Send) -> None:
        wire, body = request.wire, request.body
        if wire not in self._endpoint.wires:
            allowed = ", ".join(PATHS[one] for one in self._endpoint.wires)
            raise Refused(404, f"{self._endpoint.provider} does not speak this format; it takes {allowed}")
        model = self.model_for(body)
        sent, changed = body.sent(model=model, with_usage=wire == "chat" and body.streams)
        rate = self._rate(model)
        session = self._sessions.find(request.headers, body.values, wire, key=request.key_name)
        session.turns += 1
        turn = _Turn(
            request=request,
            session=session,
            number=session.turns,
            conversation=prefix(body.values, wire),
            changed=changed,
            began=time.monotonic(),
        )
        turn.at_most = 0.0 if rate is None else _worst_case(rate, body)
        try:
            entry = await self._books.reserve(turn.at_most, key=request.key_name, session=session.name)
        except CapReached as error:
            raise Refused(402, str(error), code="insufficient_quota") from None
        reply = PassingReply(wire, streams=False)
        try:
            reply = await self._exchange(turn, model, sent, entry, receive, send)
        except Refused as refused:
            turn.status, turn.trouble = refused.status, turn.trouble or str(refused)
            raise
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError)
            turn.trouble = "the server stopped" if stopped else f"the server failed ({type(error).__name__})"
            await self._books.lost(entry, turn.trouble)
            raise
        finally:
            self._note(turn, model, reply)

    def _rate(self, model: str) -> Rate | None:
        """Return the price of a model. Raises Refused if it has none and a cap is to be kept."""
        rate = self._endpoint.rate(model)
        if rate is None:
            if self._books.is_capped:
                raise Refused(
                    400,
                    f"model {model:.100}: has no price, and a cap is set; ask for {self._endpoint.model}, or give "
                    "teacher.usd_in and teacher.usd_out",
                    code="model_not_found",
                )
            if model not in self._unpriced and len(self._unpriced) < 1000:
                self._unpriced.add(model)
                logger.warning("  %.100s: no price; its requests are booked as unknown", model)
        return rate

    async def _exchange(
        self, turn: _Turn, model: str, sent: bytes, entry: Reservation, receive: Receive, send: Send
    ) -> PassingReply:
        """Send the request, pass its reply on and book it."""
        request, wire = turn.request, turn.request.wire
        headers = to_provider(request.headers, self._endpoint.key_headers)
        withhold = "stream_options.include_usage" in turn.changed
        if withhold:  # events are read one by one
            headers = [(name, "identity" if name == "accept-encoding" else value) for name, value in headers]
        watch = asyncio.ensure_future(_left(receive))
        reply = PassingReply(wire, streams=False)
        try:
            url = self._endpoint.url(PATHS[wire], request.query)
            async with self._upstream.post(url, headers, sent) as response:
                loop = asyncio.get_running_loop()
                watch.add_done_callback(lambda _: loop.call_later(self._settings.drain_seconds, response.close))
                turn.status, turn.first_byte = response.status, time.monotonic() - turn.began
                streams = response.status == 200 and response.content_type == "text/event-stream"
                reply = PassingReply(wire, streams=streams, withhold_usage=withhold)
                try:
                    await (self._stream if streams else self._whole)(turn, response, reply, send)
                except BrokenOff as error:
                    turn.trouble = str(error)
                    if not streams:
                        raise
                    await _sent(send, write_error_event(wire, turn.trouble), more=False)
        except NotSent as error:
            turn.trouble = str(error)
            await self._books.settle(entry, 0.0)
            turn.usd = 0.0
            raise Refused(503, turn.trouble, retry=True) from None
        except BrokenOff as error:
            turn.trouble = str(error)
            await self._book(turn, model, entry, reply.facts)
            raise Refused(502, turn.trouble, retry=True) from None
        finally:
            turn.client_left = watch.done()
            watch.cancel()
        await self._book(turn, model, entry, reply.facts, content=b"" if reply.facts.ended else reply.content)
        return reply

    async def _stream(self, turn: _Turn, response: aiohttp.ClientResponse, reply: PassingReply, send: Send) -> None:
        """Pass a stream on as it arrives. Raises BrokenOff if it does not come to its end."""
        await _begun(send, response, [])
        decode = decoder(response.headers.get("content-encoding", ""))
        async for piece in self._upstream.pieces(response):
            plain = b"".join(decoded(decode, piece))
            passed = reply.add(plain)
            # where nothing is withheld the bytes go on as they came, decoded or not
            await _sent(send, passed if reply.withholds else piece)
        rest = reply.end()
        if not reply.facts.ended and reply.facts.error is None:
            await _sent(send, rest)
            raise BrokenOff("the reply ended before its end")
        await _sent(send, rest, more=False)

    async def _whole(self, turn: _Turn, response: aiohttp.ClientResponse, reply: PassingReply, send: Send) -> None:
        """Pass a reply on that does not stream. Raises BrokenOff if it breaks off."""
        decode = decoder(response.headers.get("content-encoding", ""))
        pieces = []
        async for piece in self._upstream.pieces(response):
            pieces.append(piece)
            reply.add(b"".join(decoded(decode, piece)))
            if reply.size > _LONGEST_BODY:
                raise BrokenOff(f"the reply is longer than {_LONGEST_BODY >> 20} MiB")
        reply.end()
        raw = b"".join(pieces)
        await _begun(send, response, [(b"content-length", str(len(raw)).encode())])
        await _sent(send, raw, more=False)

    async def _book(
        self, turn: _Turn, model: str, entry: Reservation, facts: StreamFacts, content: bytes = b""
    ) -> None:
        """Settle the request by the usage that its reply told, at no cost if it was refused, else as unknown."""
        usage, rate = facts.usage, self._endpoint.rate(model, facts.model)
        refused = turn.status >= 400 and (
            turn.status < 500 or bool(facts.error or read_error(turn.status, content).codes)
        )
        if refused and usage is None:
            turn.usd = 0.0
        elif usage is not None and usage.whole and rate is not None and facts.ended and not turn.trouble:
            turn.tokens = usage.counts(0, 0)
            turn.usd = rate.usd(turn.tokens, batch=False)
        if turn.usd is None:
            turn.trouble = turn.trouble or ("the model has no price" if rate is None else "the reply told no usage")
            await self._books.lost(entry, turn.trouble)
            self._metrics.add("r2v_usd_total", entry.usd, kind="unknown")
            return
        await self._books.settle(entry, turn.usd)

    def _note(self, turn: _Turn, model: str, reply: PassingReply) -> None:
        """Write the turn's line, its record and its metrics."""
        request, facts, seconds = turn.request, reply.facts, time.monotonic() - turn.began
        whole = facts.ended and turn.status == 200 and not turn.trouble
        if whole:
            self._sessions.answered(turn.conversation, key=request.key_name)
        row: dict[str, Any] = {
            "kind": "turn",
            "at": round(time.time(), 3),
            "session": turn.session.name,
            "by": turn.session.source,
            "turn": turn.number,
            "key": request.key_name,
            "wire": request.wire,
            "stream": request.body.streams,
            "model": model,
            "source": "llm",
            "changed": list(turn.changed),
            "conversation": turn.conversation,
            "status": turn.status,
            "usd": turn.usd,
            "at_most": turn.at_most,
            "tokens": None if turn.tokens is None else _counts(turn.tokens),
            "answered_by": facts.model,
            "reply": reply.sha256,
            "reply_id": facts.id,
            "whole": whole,
            "client_left": turn.client_left and not facts.ended,
            "first_byte": None if turn.first_byte is None else round(turn.first_byte, 4),
            "seconds": round(seconds, 4),
        } | ({"trouble": turn.trouble} if turn.trouble else {})
        self._traffic.append(row)
        if self._recorder is not None:
            named = ("session", "key", "turn", "wire", "stream", "model", "answered_by", "whole", "usd", "tokens")
            about = {name: row[name] for name in named}
            self._recorder.write(turn.session.name, about, request.body.plain, reply.content)
        metrics, status = self._metrics, str(turn.status)
        metrics.add("r2v_requests_total", wire=request.wire, source="llm", status=status)
        metrics.add("r2v_seconds_total", seconds)
        metrics.add("r2v_client_left_total", float(row["client_left"]))
        if turn.usd is not None:
            metrics.add("r2v_usd_total", turn.usd, kind="billed")
        for kind, count in (row["tokens"] or {}).items():
            metrics.add("r2v_tokens_total", count, kind=kind)


def _worst_case(rate: Rate, body: RequestBody) -> float:
    """Return the most USD that a request can be billed: a token for each byte of its body, and all of its limit."""
    prompt = len(body.plain) + (_HIDDEN_PROMPT if body.values.get("tools") else 0)
    limit = first_number(body.values, "max_tokens", "max_completion_tokens", "max_output_tokens")
    samples = first_number(body.values, "n") or 1
    return rate.worst_case(prompt, samples * (limit or rate.context or _LONGEST_OUTPUT), batch=False)


def _counts(tokens: TokenCounts) -> dict[str, int]:
    names = ("fresh", "cached", "write_5m", "write_1h", "output")
    return {name: count for name in names if (count := getattr(tokens, name))}


async def _left(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _begun(send: Send, response: aiohttp.ClientResponse, more: Headers) -> None:
    headers = [*to_client(response.raw_headers), (b"x-r2v-source", b"llm"), *more]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})


async def _sent(send: Send, body: bytes, *, more: bool = True) -> None:
    if body or not more:
        await send({"type": "http.response.body", "body": body, "more_body": more})
