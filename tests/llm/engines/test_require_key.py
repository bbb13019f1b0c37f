"""The key of an engine's server is required at every path, including those that vLLM leaves open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from r2v.llm.engines.require_key import RequireKey


def status(monkeypatch: pytest.MonkeyPatch, path: str, key: str = "", kind: str = "http") -> object:
    """Return the status of a request to a server that serves every path."""
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    sent: list[dict[str, Any]] = []

    async def serve(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async def receive() -> None: ...

    headers = [(b"host", b"here"), *([(b"authorization", f"Bearer {key}".encode())] if key else [])]
    asyncio.run(RequireKey(serve)({"type": kind, "path": path, "headers": headers}, receive, send))
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations", "/v1/load_lora_adapter", "/metrics", "/"])
def test_every_path_but_health_needs_the_key(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(monkeypatch, path) == status(monkeypatch, path, "secre") == status(monkeypatch, path, "sécret") == 401
    assert status(monkeypatch, path, "secret") == 200
    assert status(monkeypatch, path, kind="websocket") == "websocket.close"


def test_a_server_that_starts_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(monkeypatch, "/health") == 200 and status(monkeypatch, "/health/", "") == 401
