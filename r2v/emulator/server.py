"""HTTP server of the emulator: HTTP/1.1 on loopback, a thread per connection, and connection-level faults."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message as HttpHeaders
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO, cast
from urllib.parse import parse_qsl, urlsplit

from r2v.emulator.api import anthropic, direct_calls, openai
from r2v.emulator.api.calls import Call, Response, error_response
from r2v.emulator.batches.downloads import ConnectionDropped
from r2v.emulator.bodies import ApiError, credit_error
from r2v.emulator.server_state import ServerState

_SPOOLED = 1 << 20
"""Largest body kept in memory, in bytes."""

_PIECE = 1 << 16


@dataclass(frozen=True)
class Route:
    """An endpoint and its handler."""

    method: str
    pattern: re.Pattern[str]
    provider: str
    name: str
    act: Callable[..., Response]


def _route(method: str, path: str, provider: str, name: str, act: Callable[..., Response]) -> Route:
    return Route(method, re.compile(path.replace("{id}", "([^/]+)")), provider, name, act)


API_ROUTES = (
    _route("POST", "/v1/chat/completions", "openai", "sync", direct_calls.ask),
    _route("POST", "/v1/responses", "openai", "sync", direct_calls.ask),
    _route("POST", "/v1/files", "openai", "upload", openai.upload),
    _route("GET", "/v1/files", "openai", "file", openai.files),
    _route("GET", "/v1/files/{id}", "openai", "file", openai.file),
    _route("DELETE", "/v1/files/{id}", "openai", "delete", openai.file),
    _route("GET", "/v1/files/{id}/content", "openai", "results", openai.content),
    _route("POST", "/v1/batches", "openai", "create", openai.create),
    _route("GET", "/v1/batches", "openai", "list", openai.batches),
    _route("GET", "/v1/batches/{id}", "openai", "poll", openai.poll),
    _route("POST", "/v1/batches/{id}/cancel", "openai", "cancel", openai.stop),
    _route("POST", "/v1/messages", "anthropic", "sync", direct_calls.ask),
    _route("POST", "/v1/messages/count_tokens", "anthropic", "file", anthropic.count),
    _route("POST", "/v1/messages/batches", "anthropic", "create", anthropic.create),
    _route("GET", "/v1/messages/batches", "anthropic", "list", anthropic.batches),
    _route("GET", "/v1/messages/batches/{id}", "anthropic", "poll", anthropic.poll),
    _route("DELETE", "/v1/messages/batches/{id}", "anthropic", "delete", anthropic.delete),
    _route("POST", "/v1/messages/batches/{id}/cancel", "anthropic", "cancel", anthropic.stop),
    _route("GET", "/v1/messages/batches/{id}/results", "anthropic", "results", anthropic.results),
    _route("GET", "/elsewhere/{id}/results", "anthropic", "elsewhere", anthropic.elsewhere),
)


class EmulatorServer(ThreadingHTTPServer):
    """HTTP server of a `ServerState`; closing it cuts every connection."""

    daemon_threads, block_on_close, request_queue_size = True, False, 256

    def __init__(self, state: ServerState, port: int) -> None:
        self.state = state
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    def opened(self, connection: socket.socket) -> None:
        """Register a connection."""
        with self._guard:
            self._open.add(connection)

    def shutdown_request(self, request: object) -> None:
        """Close and unregister a connection."""
        connection = cast(socket.socket, request)
        with self._guard:
            self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        connection.close()

    def cut_all(self) -> None:
        """Cut every open connection."""
        with self._guard:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connection errors of clients; print any other error."""
        if not isinstance(sys.exc_info()[1], OSError) and not self.state.stopping.is_set():
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: EmulatorServer

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return an HTTP date by the server's own clock."""
        return formatdate(self.server.state.now() if timestamp is None else timestamp, usegmt=True)

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_DELETE = do_GET

    def _serve(self) -> None:
        url, state = urlsplit(self.path), self.server.state
        provider = "anthropic" if url.path.startswith(("/v1/messages", "/elsewhere")) else "openai"
        match_of_route = next(
            (
                (route, match.groups())
                for route in API_ROUTES
                if route.method == self.command and (match := route.pattern.fullmatch(url.path))
            ),
            None,
        )
        faults = state.injector.draw("call", provider, match_of_route[0].name) if match_of_route else frozenset()
        if "reset" in faults or "reset_upload" in faults:
            length = int(self.headers.get("Content-Length", "0")) if "reset_upload" in faults else 0
            self.rfile.read(length // 2)
            self._reset()
            return
        with self._body() as body:
            if "502" in faults:
                self._send(Response(status=502, body=_PROXY_PAGE, content_type="text/html"))
                return
            try:
                raise_call_fault(faults, provider, state.now())
                _check_key(provider, url.path, self.headers)
                if match_of_route is None:
                    raise ApiError(404, f"{self.command} {url.path}: no such endpoint in the emulator")
                route, names = match_of_route
                call = Call(
                    provider=provider,
                    route=route.name,
                    method=self.command,
                    path=url.path,
                    query=dict(parse_qsl(url.query)),
                    headers=self.headers,
                    body=body,
                )
                with state.serving(provider, route.name):
                    self._send(_act(route, state, call, names))
            except ApiError as refused:
                self._send(error_response(refused, provider))

    def _body(self) -> BinaryIO:
        """Return the request's body, on disk if it is long or chunked."""
        length = int(self.headers.get("Content-Length", "0"))
        chunked = self.headers.get("Transfer-Encoding", "") == "chunked"
        long = chunked or length > _SPOOLED
        body = cast(BinaryIO, tempfile.TemporaryFile() if long else io.BytesIO())  # noqa: SIM115
        while chunked and (size := int(self.rfile.readline(), 16)):
            body.write(self.rfile.read(size))
            self.rfile.readline()
        if chunked:
            self.rfile.readline()
        while not chunked and length > 0:
            piece = self.rfile.read(min(length, _PIECE))
            if not piece:
                raise ConnectionError("the client disconnected in the middle of a body")
            body.write(piece)
            length -= len(piece)
        body.flush()
        body.seek(0)
        return body

    def _send(self, response: Response) -> None:
        if response.end:
            if response.end == "silence":
                self.server.state.pause(self.server.state.timing.silence)
            self._reset() if response.end == "reset" else self._close()
            return
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("request-id", "req_emulated")
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.chunks is None:
            self.send_header("Content-Length", str(len(response.body)))
            self._headers_buffer.extend((b"\r\n", response.body))  # type: ignore[attr-defined]
            self.flush_headers()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._stream(response)

    def _stream(self, response: Response) -> None:
        try:
            for piece in response.chunks or ():
                if piece:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionDropped:
            self._close()

    def _reset(self) -> None:
        """Close the connection so that the client gets ECONNRESET."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close()

    def _close(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.close()


_PROXY_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>502 Bad Gateway</body></html>"


def _act(route: Route, state: ServerState, call: Call, names: tuple[str, ...]) -> Response:
    """Carry out a call. An error in the emulator or the answer function becomes a 500, its traceback goes to stderr."""
    try:
        return route.act(state, call, *names)
    except ApiError:
        raise
    except Exception as error:
        if not state.stopping.is_set():
            traceback.print_exc()
        raise ApiError(500, f"the emulator failed: {error!r}") from error


def raise_call_fault(faults: frozenset[str], provider: str, now: float) -> None:
    """Raise ApiError for the call faults that are error responses."""
    waits = {
        "429_retry_after_2": "2",
        "429_retry_after_300": "300",
        "429_no_retry_after": None,
        "429_retry_after_date": formatdate(now + 2, usegmt=True),
    }
    for name, wait in waits.items():
        if name in faults:
            raise ApiError(
                429,
                "Rate limit reached",
                code="rate_limit_exceeded",
                headers={} if wait is None else {"retry-after": wait},
            )
    if "401" in faults:
        raise ApiError(401, "Incorrect API key provided", code="invalid_api_key")
    if "call_400" in faults:
        raise ApiError(400, "Unknown parameter: 'effort_level'.", code="unknown_parameter")
    if "credit_exhausted" in faults:
        raise credit_error(provider)
    for status, message in ((500, "Internal server error"), (503, "Service unavailable"), (529, "Overloaded")):
        if str(status) in faults:
            raise ApiError(status, message)


def _check_key(provider: str, path: str, headers: HttpHeaders) -> None:
    if path.startswith("/elsewhere"):
        return
    if not headers.get("Authorization") and not (provider == "anthropic" and headers.get("x-api-key")):
        raise ApiError(401, "No API key was sent", code="invalid_api_key")
    if provider == "anthropic" and not headers.get("anthropic-version"):
        raise ApiError(400, "anthropic-version: header is required")
