"""The key at every path of the engine's server: vLLM itself asks for it at some, and serves /invocations to anybody.

It runs in the engine's own Python, which has no r2v, as ASGI middleware (`--middleware`).
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
"""By which a server that starts is waited for; it tells nothing else."""


class RequireKey:
    """Answers 401 to a request that does not bring the server's key."""

    def __init__(self, app: Callable[[_Scope, _Receive, _Send], Awaitable[None]]) -> None:
        self._app, self._authorization = app, f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Hand the request on, or answer it."""
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
