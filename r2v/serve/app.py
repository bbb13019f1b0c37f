"""Routes of the server: the three formats, lists of models, sessions, metrics and health.

Only these paths exist. They are compared after decoding and never joined to the provider's address; any other path is
404 and is not forwarded. HEAD is answered on any path without a key, because clients probe with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from r2v.errors import EnvironmentFault, R2VError
from r2v.log import logger
from r2v.serve.accounts.books import Books
from r2v.serve.accounts.metrics import Metrics
from r2v.serve.accounts.traffic import TrafficLog
from r2v.serve.answering import Answerer
from r2v.serve.forwarding import Message, Receive, Refused, Send, send_whole
from r2v.serve.keys import ServerKeys
from r2v.serve.request import ClientRequest
from r2v.serve.sessions import Sessions
from r2v.serve.transport.body import RequestBody, Unreadable
from r2v.serve.transport.endpoints import COUNT_PATH, PATHS, Endpoint
from r2v.serve.transport.headers import Headers, first, to_client, to_provider
from r2v.serve.transport.upstream import BrokenOff, NotSent, Upstream
from r2v.wire.errors import write_error
from r2v.wire.stream_facts import WireName

LARGEST_BODY = 33_000_000
"""Bytes of a request body after decompression: a little over Anthropic's limit of 32 MB."""

Scope = Message
_OPEN_PATHS = ("/healthz", "/readyz")
"""Paths without a key, for liveness probes; they reveal nothing but the state."""
_BODY_SECONDS = 120.0
"""Limit on the arrival of a request's body, so that a stalled client does not hold a connection."""


class ServeApp:
    """The ASGI application."""

    def __init__(
        self,
        endpoint: Endpoint,
        answerer: Answerer,
        upstream: Upstream,
        books: Books,
        sessions: Sessions,
        metrics: Metrics,
        traffic: TrafficLog,
        keys: ServerKeys,
    ) -> None:
        self._endpoint, self._answerer, self._upstream = endpoint, answerer, upstream
        self._books, self._sessions, self._metrics = books, sessions, metrics
        self._traffic, self._keys = traffic, keys
        posts = [Route(path, _Ask(self._ask, wire), methods=["POST"]) for wire, path in PATHS.items()]
        self._app = Starlette(
            routes=[
                *posts,
                Route(COUNT_PATH, _Ask(self._count_tokens, "messages"), methods=["POST"]),
                Route("/v1/responses", self._no_websocket, methods=["GET"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._model, methods=["GET"]),
                Route("/v1/sessions/{name:path}", self._session, methods=["GET"]),
                Route("/v1/decide", self._decide, methods=["POST"]),
                Route("/v1/feedback", self._feedback, methods=["POST"]),
                Route("/metrics", self._metrics_page, methods=["GET"]),
                Route("/healthz", _healthy, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
            ],
            exception_handlers={Refused: self._refusal, HTTPException: self._no_such_path, R2VError: self._fault},
        )
        self._app.router.redirect_slashes = False  # any other spelling of a path is a 404

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["method"] == "HEAD":  # a probe of some clients, sent without their key
            await Response()(scope, receive, send)
            return
        scope["key_name"] = self._keys.name_of(scope["headers"])
        refused = None
        if scope["method"] == "OPTIONS":
            refused = Refused(403, "browsers of other origins are not served")
        elif scope["path"] not in _OPEN_PATHS and scope["key_name"] is None:
            refused = Refused(401, "no key of this server; send one as x-api-key or Authorization: Bearer")
        elif self._keys.stand_in(scope["query_string"]):
            refused = Refused(400, "a key in the query string, which goes to the provider; send it in a header")
        if refused is not None:
            await self._refusal(Request(scope), refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request, error: Exception) -> Response:
        """Return the server's own answer, in the client's format."""
        assert isinstance(error, Refused)
        wire = next((wire for wire, path in PATHS.items() if request.scope["path"].startswith(path)), "chat")
        self._metrics.add("r2v_requests_total", wire=wire, source="server", status=str(error.status))
        headers = {} if error.retry else {"x-should-retry": "false"}
        if error.status == 429:
            headers["retry-after"] = "1"
        if error.status in (401, 408, 413, 426):
            headers["connection"] = "close"  # unread bytes of the body, or of another protocol, may follow
        body = write_error(wire, error.status, str(error), code=error.code)
        return JSONResponse(body, error.status, headers)

    def _no_such_path(self, request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        return self._refusal(request, Refused(404, f"{request.method} {path:.100}: this server has no such path"))

    def _fault(self, request: Request, error: Exception) -> Response:
        logger.error("  request failed: error=%s", error)
        return self._refusal(request, Refused(500, str(error)))

    async def _ask(self, wire: WireName, scope: Scope, receive: Receive, send: Send) -> None:
        request, began = await self._request(wire, scope, receive), False

        async def noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._answerer.answer(request, receive, noted)
        except EnvironmentFault as error:
            if not began:
                raise
            # the reply has begun: a status and an error can no longer be sent
            logger.error("  request failed after its reply began: error=%s", error)

    async def _request(self, wire: WireName, scope: Scope, receive: Receive) -> ClientRequest:
        """Read a request. Raises Refused."""
        headers: Headers = list(scope["headers"])
        raw = await self._body(headers, receive)
        try:
            body = RequestBody(raw, first(headers, "content-encoding"), longest=LARGEST_BODY)
        except Unreadable as error:
            raise Refused(400, str(error)) from None
        return ClientRequest(
            wire=wire,
            query=scope["query_string"].decode("latin-1"),
            headers=headers,
            body=body,
            key_name=scope["key_name"],
        )

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit = LARGEST_BODY
        too_long = Refused(413, f"the body has more than {limit // 1_000_000} MB; this server refused it")
        if int(first(headers, "content-length") or 0) > limit:
            raise too_long
        pieces, size = [], 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client left before its body was whole")
                    size += len(message.get("body", b""))
                    if size > limit:
                        raise too_long
                    pieces.append(message.get("body", b""))
                    if not message.get("more_body"):
                        return b"".join(pieces)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {_BODY_SECONDS:g} s") from None

    async def _count_tokens(self, wire: WireName, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a token count, which no provider bills."""
        if "messages" not in self._endpoint.wires:
            raise Refused(404, f"{self._endpoint.provider} counts no tokens")
        request = await self._request(wire, scope, receive)
        sent, _ = request.body.sent(model=self._answerer.model_for(request.body))
        headers = to_provider(request.headers, self._endpoint.key_headers)
        try:
            async with self._upstream.post(self._endpoint.url(COUNT_PATH, request.query), headers, sent) as response:
                answer = b"".join([piece async for piece in self._upstream.pieces(response)])
                await send_whole(send, response.status, to_client(response.raw_headers), answer)
        except (NotSent, BrokenOff) as error:
            raise Refused(502, str(error), retry=True) from None

    async def _no_websocket(self, request: Request) -> Response:
        raise Refused(426, "responses are served over HTTP; POST the request")

    async def _models(self, request: Request) -> Response:
        data = [self._described(name) for name in self._answerer.model_names]
        ids = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
        return JSONResponse({"object": "list", "data": data, **ids})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._answerer.model_names:
            raise Refused(404, f"no model {name:.100}; this server has {', '.join(self._answerer.model_names)}")
        return JSONResponse(self._described(name))

    def _described(self, name: str) -> dict[str, Any]:
        """Return a model's entry with the fields of both SDKs."""
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "r2v",
        }

    async def _session(self, request: Request) -> Response:
        session = self._sessions.get(request.path_params["name"])
        if session is None:
            raise Refused(404, "no such session since the server's log begins")
        usd = self._books.committed("session", session.name)
        return JSONResponse(
            {"session": session.name, "recognised_by": session.source, "turns": session.turns, "usd": round(usd, 6)}
        )

    async def _feedback(self, request: Request) -> Response:
        """Log the success of a session's task, or of all sessions of the key."""
        feedback = await self._request("chat", request.scope, request.receive)
        success, session = (feedback.body.values.get(name) for name in ("success", "session"))
        if not isinstance(success, bool) or not (session is None or isinstance(session, str)):
            raise Refused(400, 'feedback: a body such as {"success": true, "session": "s1"} is asked for')
        if session is not None and self._sessions.get(session) is None:
            raise Refused(404, "no such session since the server's log begins")
        about = {"kind": "feedback", "at": round(time.time(), 3), "key": feedback.key_name}
        self._traffic.append({**about, "session": session, "success": success})
        return JSONResponse({"logged": True})

    async def _decide(self, request: Request) -> Response:
        """Return the candidates, best first, and the decision, for a gateway that asks the models itself."""
        if self._answerer.pair is None:
            raise Refused(404, "no bundle is served; r2v serve BUNDLE decides")
        envelope = await self._request("chat", request.scope, request.receive)
        wire, inner = envelope.body.values.get("wire", "chat"), envelope.body.values.get("request")
        if wire not in PATHS or not isinstance(inner, dict):
            form = '{"wire": "chat", "request": {...}}'
            raise Refused(400, f"decide: a body such as {form} is asked for; wires: {', '.join(PATHS)}")
        decision = await self._answerer.decide(replace(envelope, wire=wire, body=RequestBody.of(inner)))
        names = {"small": "small", "llm": self._endpoint.model}
        order = [decision.source, "llm" if decision.source == "small" else "small"]
        return JSONResponse(
            {"candidates": [{"model": names[source], "source": source} for source in order], **decision.logged}
        )

    async def _ready(self, request: Request) -> Response:
        """Return the state of the small model; with a key also its tools and the requests outside its domain."""
        pair = self._answerer.pair
        state = "ok" if pair is None or pair.breaker.healthy else "small model down"
        status: dict[str, Any] = {"status": state}
        if pair is not None and request.scope["key_name"] is not None:
            tools = [tool.name for tool in pair.domain.tools]
            status["small"] = {"tools": tools, "outside": self._answerer.outside}
        return JSONResponse(status)

    async def _metrics_page(self, request: Request) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")


async def _healthy(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


class _Ask:
    """A route's endpoint in plain ASGI, so that streams pass without Starlette's response layer."""

    def __init__(self, act: Callable[[WireName, Scope, Receive, Send], Awaitable[None]], wire: WireName) -> None:
        self._act, self._wire = act, wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._act(self._wire, scope, receive, send)
