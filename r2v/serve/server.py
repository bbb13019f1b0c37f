"""Process of the server: it opens books, logs and connections, and listens until it is stopped.

    async with listening(config, root, record=False) as server:
        server.url, server.keys_file

uvicorn parses HTTP. It lacks limits on the size and the arrival time of a request's headers, which are added here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from r2v.config import Config
from r2v.errors import EnvironmentFault, UsageError
from r2v.log import logger
from r2v.serve.accounts.books import Books
from r2v.serve.accounts.metrics import Metrics
from r2v.serve.accounts.traffic import Recorder, TrafficLog
from r2v.serve.answering import Answerer
from r2v.serve.app import ServeApp
from r2v.serve.forwarding import Forwarder
from r2v.serve.keys import ServerKeys, server_keys
from r2v.serve.pair.pair import served_pair
from r2v.serve.sessions import Sessions
from r2v.serve.transport.endpoints import endpoint
from r2v.serve.transport.upstream import Upstream
from r2v.serve.turns import TurnLog
from r2v.storage.paths import SERVERS

_HEADER_SECONDS = 15.0
"""Limit on the arrival of headers, against clients that send them a byte at a time."""
_LONGEST_HEADERS = 1 << 16
"""Limit in bytes on the headers of a request, which are buffered."""
_GRACE = 30
"""Seconds of a stopping server for the replies in flight."""


@dataclass(frozen=True, kw_only=True)
class Listening:
    """A server that listens."""

    url: str
    keys_file: Path | None
    """File with its keys; None if they are given or in R2V_SERVE_KEY."""
    folder: Path
    traffic: TrafficLog


@asynccontextmanager
async def listening(
    config: Config,
    root: Path = Path(),
    *,
    record: bool,
    keys: Mapping[str, str] | None = None,
    bundle: Path | None = None,
) -> AsyncIterator[Listening]:
    """Serve while the block runs. record: write the sessions' text. keys: by name, in place of the server's own.
    bundle: folder of the pair to serve; None: the LLM alone. Raises UsageError, InputError, LeaseConflict, and
    EnvironmentFault if the port is taken."""
    settings = config.serve
    folder = root / SERVERS / settings.name
    llm = endpoint(config.teacher)
    # a shell set up for the server's clients would make it forward to itself, without end
    if llm.root.startswith(own := f"http://{settings.host}:{settings.port}/"):
        raise UsageError(f"the LLM's address is this server's own, {own}: unset OPENAI_BASE_URL and ANTHROPIC_BASE_URL")
    client_keys, keys_file = server_keys(folder) if keys is None else (ServerKeys(dict(keys)), None)
    async with AsyncExitStack() as stack:
        rate = llm.rate(llm.model)
        assert rate is not None, "endpoint() refuses a model without a price"
        books = await stack.enter_async_context(Books(folder, config, rate, root))
        traffic, sessions, metrics = TrafficLog(folder), Sessions(), Metrics()
        stack.callback(traffic.close)
        for row in traffic.open():  # clients go on with their sessions after a restart
            if row["kind"] == "turn":
                sessions.restore(row)
        upstream = await stack.enter_async_context(Upstream(settings))
        pair = None if bundle is None else await stack.enter_async_context(served_pair(bundle, config, upstream, books))
        turns = TurnLog(traffic, sessions, metrics, Recorder(folder) if record else None)
        forwarder = Forwarder(llm, settings, upstream, books, metrics)
        answerer = Answerer(llm, settings, forwarder, sessions, turns, metrics, pair)
        app = ServeApp(llm, answerer, upstream, books, sessions, metrics, traffic, client_keys)
        logging.getLogger("uvicorn.access").disabled = True  # its lines hold query strings, which may hold secrets
        bound = _bound(settings.host, settings.port)
        stack.callback(bound.close)
        server = _Server(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=_GRACE,
                timeout_keep_alive=75,
            )
        )
        serving = asyncio.create_task(server.serve([bound]))
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        try:
            yield Listening(url=f"http://{shown}:{port}", keys_file=keys_file, folder=folder, traffic=traffic)
        finally:
            server.should_exit = True
            await serving
            # each cancelled request books its worst case and logs its turn before the journal closes
            for task in list(answerer.in_flight):
                task.cancel()
            await asyncio.gather(*answerer.in_flight, return_exceptions=True)


async def serve_until_stopped(
    config: Config,
    root: Path = Path(),
    *,
    record: bool,
    ready: Callable[[Listening], None],
    bundle: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. ready: called once the server listens."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with listening(config, root, record=record, bundle=bundle) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        ready(server)
        await stopped.wait()
        logger.info("  server stopping, replies in flight may end: grace_seconds=%d", _GRACE)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port, so that a taken port is an error of ours. Raises EnvironmentFault."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named because asyncio disables Nagle's algorithm, which delays each reply by 40 ms, only then
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2048)  # clients may connect from here on
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentFault(
            f"serve.host={host} serve.port={port}: cannot be listened on ({reason}); name another port, or 0"
        ) from None
    return bound


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the command has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Do nothing."""
        yield


class _Protocol(HttpToolsProtocol):
    """One connection with limits on the size and the arrival time of request headers."""

    def connection_made(self, transport: Any) -> None:
        """Start the deadline of the first request."""
        super().connection_made(transport)
        self._header_bytes, self._in_headers = 0, True
        self._deadline = self.loop.call_later(_HEADER_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of headers."""
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > _LONGEST_HEADERS and b"\r\n\r\n" not in data:
                self._end(b"431 Request Header Fields Too Large")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Start counting the headers of a request."""
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0
        self._deadline.cancel()
        self._deadline = self.loop.call_later(_HEADER_SECONDS, self._too_slow)

    def on_headers_complete(self) -> None:
        """Stop counting: the body has limits of its own. A target in absolute form is for a proxy and becomes a 404."""
        self._in_headers = False
        self._deadline.cancel()
        if not self.url.startswith(b"/"):
            self.url = b"/-/absolute-form"
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def _too_slow(self) -> None:
        self._end(b"408 Request Timeout")

    def _end(self, status: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
