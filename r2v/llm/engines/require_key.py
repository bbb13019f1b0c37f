"""ASGI middleware that requires the key at every path of the engine's server; vLLM leaves some open (/invocations).

It runs in the engine's own Python, where r2v is not installed (`--middleware`).
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[dict[str, Any]], Awaitable[None]]
_OPEN_PATH = "/health"
"""Open without a key: it tells only that the server is up."""


class RequireKey:
    """Middleware that answers 401 to requests without the server's key."""

    def __init__(self, app: Callable[[_Scope, _Receive, _Send], Awaitable[None]]) -> None:
        self._app, self._authorization = app, f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Pass the request on, or reject it."""
        if scope["type"] == "lifespan" or scope["path"] == _OPEN_PATH or self._keyed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})

    def _keyed(self, scope: _Scope) -> bool:
        sent = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(sent, self._authorization)
