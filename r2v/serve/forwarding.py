"""Forwarding: one request to the LLM, and its reply to the client as it arrives.

The request is booked at its worst case before it leaves and settled when its reply ends. A reply whose client has left
is still read for its usage, because the provider bills it. Nothing is retried, because clients retry and a proxy that
retries too would multiply their attempts. The exception is one retry without thoughts that the provider calls invalid.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from r2v.config import ServeConfig
from r2v.errors import EnvironmentFault
from r2v.llm.providers.prices import Rate
from r2v.log import logger
from r2v.serve.accounts.books import Books, CapReached, Reservation
from r2v.serve.accounts.metrics import Metrics
from r2v.serve.request import worst_case
from r2v.serve.transport.body import RequestBody
from r2v.serve.transport.endpoints import PATHS, Endpoint
from r2v.serve.transport.headers import Headers, to_client, to_provider
from r2v.serve.transport.upstream import BrokenOff, Decoder, NotSent, Upstream
from r2v.serve.turns import ServedTurn
from r2v.wire.errors import names_thoughts, read_error, without_thoughts, write_error_event
from r2v.wire.exchange import reply_limit
from r2v.wire.message import mapping
from r2v.wire.sse import end_of_event, end_of_events, read_events
from r2v.wire.stream_facts import StreamFacts, WireName, informative, read_event, read_whole

_LONGEST_READ = 16 << 20
"""Bytes of a reply held for its record and the usage in its body, and of an event that is read."""

_LONGEST_END = 2
"""Bytes of the separator of two events that an earlier piece may end with, at most."""


class PassingReply:
    """One reply in transit to the client: its bytes pass unchanged, and are read for the books and the record.
    withhold_usage: drop the chunk of Chat Completions that holds only the usage."""

    def __init__(self, wire: WireName, *, streams: bool, withhold_usage: bool = False) -> None:
        self.facts = StreamFacts()
        self._wire, self._streams, self.withholds = wire, streams, withhold_usage
        self._rest = bytearray()
        """The incomplete event at the end."""
        self._held: list[bytes] = []
        self.size = 0
        self._hash = hashlib.sha256()
        self._seen_first = False

    def add(self, piece: bytes) -> bytes:
        """Add the next decoded bytes and return the bytes to pass on."""
        self._hash.update(piece)
        self.size += len(piece)
        if self.size <= _LONGEST_READ:
            self._held.append(piece)
        if not self._streams:
            return piece
        begun = max(0, len(self._rest) - _LONGEST_END)
        self._rest += piece
        end = end_of_events(self._rest, begun)
        if end > begun:
            passed = self._read(self._take(end))
        else:  # an endless event passes unread, so that the memory stays bounded
            passed = self._take(len(self._rest)) if len(self._rest) > _LONGEST_READ else b""
        return passed if self.withholds else piece

    def _take(self, size: int) -> bytes:
        head = bytes(self._rest[:size])
        del self._rest[:size]
        return head

    def end(self) -> bytes:
        """Read the rest at the end of the reply and return the bytes still to pass on."""
        if self._streams:
            passed = self._read(self._take(len(self._rest)))
            return passed if self.withholds else b""
        if self.size <= _LONGEST_READ:
            try:
                body = json.loads(self.content)
            except (ValueError, RecursionError):  # a proxy's page of an error, for example: it holds no facts
                body = None
            if isinstance(body, Mapping):
                read_whole(self.facts, body)
        return b""

    def _read(self, events: bytes) -> bytes:
        """Read the facts in whole events and return the events to pass on. Most hold no facts and are never split."""
        passed: list[bytes] = []
        at = 0
        if not self._seen_first and events:
            at = self._read_event(events, 0, end_of_event(events, 0), passed)
        for position in informative(self._wire, events):
            if position >= at:
                start = end_of_events(events, at, position)
                passed.append(events[at:start])
                at = self._read_event(events, start, end_of_event(events, position), passed)
        return b"".join([*passed, events[at:]])

    def _read_event(self, events: bytes, start: int, end: int, passed: list[bytes]) -> int:
        withheld = False
        for event in read_events([events[start:end]]):
            self._seen_first = True
            read_event(self._wire, self.facts, event)
            value = mapping(event.json)
            withheld = self.withholds and value.get("choices") == [] and isinstance(value.get("usage"), Mapping)
        if not withheld:
            passed.append(events[start:end])
        return end

    @property
    def content(self) -> bytes:
        """Decoded bytes; for a reply over 16 MiB, the first ones."""
        return b"".join(self._held)

    @property
    def sha256(self) -> str:
        """Hash of the decoded bytes."""
        return self._hash.hexdigest()


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_USAGE = "stream_options.include_usage"
_LONGEST_BODY = 64 << 20
"""Limit in bytes on a reply that does not stream, which is held in memory."""


class Refused(Exception):
    """A request that the server answers with an error of its own. retry: a client may send it again."""

    def __init__(self, status: int, message: str, *, code: str | None = None, retry: bool = False) -> None:
        super().__init__(message)
        self.status, self.code, self.retry = status, code, retry


def by_cap(error: CapReached, body: RequestBody | None = None) -> Refused:
    """Return the refusal of a request over a cap, for now (429) or for good (402). body: the client's, if its own
    request is over the cap, to hint at a missing limit of the reply."""
    if error.passing:
        return Refused(429, f"{error}; other requests hold it: try again", code="rate_limit_exceeded", retry=True)
    endless = body is not None and not reply_limit(body.values)
    hint = ", or limit the reply (max_tokens): without a limit the longest one is reserved" if endless else ""
    return Refused(402, f"{error}{hint}", code="insufficient_quota")


class LLMDown(Refused):
    """The LLM cannot be reached, or its connection broke before the reply began."""


class Forwarder:
    """Forwards requests to one endpoint."""

    def __init__(
        self, endpoint: Endpoint, settings: ServeConfig, upstream: Upstream, books: Books, metrics: Metrics
    ) -> None:
        self._endpoint, self._settings, self._upstream = endpoint, settings, upstream
        self._books, self._metrics = books, metrics
        self._unpriced: set[str] = set()

    def require_wire(self, wire: str) -> None:
        """Raise Refused if the endpoint does not speak a format."""
        if wire not in self._endpoint.wires:
            allowed = ", ".join(PATHS[spoken] for spoken in self._endpoint.wires)
            raise Refused(404, f"{self._endpoint.provider} does not speak this format; it takes {allowed}")

    def rate(self, model: str) -> Rate | None:
        """Return the price of a model; None if it has none. Raises Refused in that case if a cap is set."""
        rate = self._endpoint.rate(model)
        if rate is None:
            if self._books.is_capped:
                raise Refused(
                    400,
                    f"model {model:.100}: has no price, and a cap is set; ask for {self._endpoint.model}, or give "
                    "teacher.usd_in and teacher.usd_out",
                    code="model_not_found",
                )
            # clients name the models: the limit bounds the set and the log
            if model not in self._unpriced and len(self._unpriced) < 1000:
                self._unpriced.add(model)
                logger.warning("  model has no price, its requests are booked as unknown: model=%.100s", model)
        return rate

    async def forward(
        self, turn: ServedTurn, rate: Rate | None, headers: Headers, receive: Receive, send: Send
    ) -> bytes:
        """Answer a turn by the LLM and return the reply's body. headers: added to the provider's own. Raises Refused
        before anything was sent to the client."""
        request, body = turn.request, turn.request.body
        sent, turn.changed = body.sent(model=turn.model, with_usage=request.wire == "chat" and body.streams)
        watch = asyncio.ensure_future(_left(receive))
        try:
            reply = await self._booked(turn, rate, sent, headers, watch, send, last=False)
            if reply is None:  # the provider called the conversation's thoughts invalid
                stripped = without_thoughts(request.wire, body.values)
                turn.changed = (*turn.changed, "thoughts")
                self._metrics.add("r2v_stripped_total")
                sent = RequestBody.of(stripped).sent(model=turn.model, with_usage=_USAGE in turn.changed)[0]
                reply = await self._booked(turn, rate, sent, headers, watch, send, last=True)
        finally:
            turn.client_left = watch.done() and not turn.whole
            watch.cancel()
        assert reply is not None, "the last attempt passes every reply on"
        return reply.content

    async def _booked(
        self,
        turn: ServedTurn,
        rate: Rate | None,
        sent: bytes,
        headers: Headers,
        watch: asyncio.Future[None],
        send: Send,
        *,
        last: bool,
    ) -> PassingReply | None:
        """Send the request, pass its reply on, book it and return it; None to send it again without thoughts."""
        request = turn.request
        turn.at_most, turn.usd = 0.0 if rate is None else worst_case(rate, request.body), None
        try:
            entry = await self._books.reserve(turn.at_most, key=request.key_name, session=turn.session.name)
        except CapReached as error:
            turn.usd = 0.0  # nothing is sent
            raise by_cap(error, request.body) from None
        reply = PassingReply(request.wire, streams=False)
        try:
            reply, again = await self._exchange(turn, sent, headers, watch, send, last=last)
            await self._book(turn, entry, reply)
        except NotSent as error:  # no connection, so nothing is billed
            turn.trouble, turn.usd = str(error), 0.0
            await self._books.settle(entry, 0.0)
            raise LLMDown(503, turn.trouble, retry=True) from None
        except BrokenOff as error:  # the request may have arrived, and the provider may bill it
            turn.trouble = str(error)
            await self._book(turn, entry, reply)
            raise LLMDown(502, turn.trouble, retry=True) from None
        except EnvironmentFault:
            raise  # the books could not be written: the request stays booked at its worst case
        except BaseException as error:  # a stopping server cancels the task, and the request may still be billed
            stopped = isinstance(error, asyncio.CancelledError)
            turn.trouble = "the server stopped" if stopped else f"the server failed ({type(error).__name__})"
            await self._books.lost(entry, turn.trouble)
            raise
        return None if again else reply

    async def _exchange(
        self, turn: ServedTurn, sent: bytes, more: Headers, watch: asyncio.Future[None], send: Send, *, last: bool
    ) -> tuple[PassingReply, bool]:
        """Send the request, pass its reply on and return it. The flag is True for a refusal of thoughts, which is not
        passed on. Raises NotSent and BrokenOff before anything was sent to the client."""
        request, wire = turn.request, turn.request.wire
        headers = to_provider(request.headers, self._endpoint.key_headers)
        withhold = _USAGE in turn.changed
        if withhold:  # an event can be left out of a plain stream only
            headers = [(name, "identity" if name == "accept-encoding" else value) for name, value in headers]
        if "thoughts" in turn.changed:  # the body was written anew, without compression
            headers = [(name, value) for name, value in headers if name != "content-encoding"]
        posted = self._upstream.post(self._endpoint.url(PATHS[wire], request.query), headers, sent)
        async with posted as response, _closed_after(watch, self._settings.drain_seconds, response):
            turn.status, turn.first_byte = response.status, time.monotonic() - turn.began
            streams = response.status == 200 and response.content_type == "text/event-stream"
            reply = PassingReply(wire, streams=streams, withhold_usage=withhold)
            if not streams:
                raw = await self._whole(response, reply)
                if not last and names_thoughts(wire, read_error(response.status, reply.content)):
                    return reply, True
                await send_whole(send, response.status, [*to_client(response.raw_headers), *more], raw)
                return reply, False
            try:
                await self._stream(response, reply, more, send)
            except BrokenOff as error:  # the status was sent: only an event can carry the error now
                turn.trouble = str(error)
                await _sent(send, write_error_event(wire, turn.trouble), more=False)
            return reply, False

    async def _stream(self, response: aiohttp.ClientResponse, reply: PassingReply, more: Headers, send: Send) -> None:
        """Pass a stream on as it arrives. Raises BrokenOff if it does not come to its end."""
        headers = [*to_client(response.raw_headers), *more]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        decode = Decoder(response)
        async for piece in self._upstream.pieces(response):
            passed = reply.add(decode(piece))
            # if nothing is withheld, the bytes pass as they came, in the encoding that the client accepts
            await _sent(send, passed if reply.withholds else piece)
        rest = reply.end()
        if not reply.facts.ended and reply.facts.error is None:
            await _sent(send, rest)
            raise BrokenOff("the reply ended before its end")
        await _sent(send, rest, more=False)

    async def _whole(self, response: aiohttp.ClientResponse, reply: PassingReply) -> bytes:
        """Return the undecoded bytes of a whole reply. Raises BrokenOff if it breaks off or is too long."""
        decode, pieces = Decoder(response), []
        async for piece in self._upstream.pieces(response):
            pieces.append(piece)
            reply.add(decode(piece))
            if reply.size > _LONGEST_BODY:
                raise BrokenOff(f"the reply is longer than {_LONGEST_BODY >> 20} MiB")
        reply.end()
        return b"".join(pieces)

    async def _book(self, turn: ServedTurn, entry: Reservation, reply: PassingReply) -> None:
        """Settle the request by the usage in its reply, at 0 if it was refused, else as unknown."""
        facts = reply.facts
        usage, rate = facts.usage, self._endpoint.rate(turn.model, facts.model)
        turn.answered_by, turn.reply_id, turn.reply_sha256 = facts.model, facts.id, reply.sha256
        turn.whole = facts.ended and turn.status == 200 and not turn.trouble
        # an error in the provider's format is its refusal; any other 5xx may be a gateway's, after a billed request
        is_provider_error = facts.error is not None or bool(read_error(turn.status, reply.content).codes)
        refused = turn.status >= 400 and (turn.status < 500 or is_provider_error)
        if refused and usage is None:
            turn.usd = 0.0
        elif usage is not None and usage.whole and rate is not None and facts.ended and not turn.trouble:
            turn.tokens = usage.counts(0, 0)
            turn.usd = rate.usd(turn.tokens, batch=False)
        if turn.usd is None:
            turn.trouble = turn.trouble or ("the model has no price" if rate is None else "the reply told no usage")
            await self._books.lost(entry, turn.trouble)
            return
        await self._books.settle(entry, turn.usd)


@asynccontextmanager
async def _closed_after(
    watch: asyncio.Future[None], seconds: float, response: aiohttp.ClientResponse
) -> AsyncIterator[None]:
    """Close the response `seconds` after its client has left, unless the block ends first. Until then it is read for
    its usage."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

    def close_later(watched: asyncio.Future[None]) -> None:
        if not watched.cancelled():
            timers.append(loop.call_later(seconds, response.close))

    watch.add_done_callback(close_later)
    try:
        yield
    finally:
        watch.remove_done_callback(close_later)
        for timer in timers:
            timer.cancel()  # a pending timer keeps the response in memory


async def _left(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a reply that does not stream."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _sent(send: Send, body: bytes, *, more: bool = True) -> None:
    if body or not more:
        await send({"type": "http.response.body", "body": body, "more_body": more})
