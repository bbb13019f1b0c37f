"""Synchronous calls: one question, one answer, one bill; and the bucket that limits them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from r2v.emulator.api.bodies import read_question
from r2v.emulator.api.calls import Call, Refused, Response, as_json
from r2v.emulator.batches.lifecycle import answer
from r2v.emulator.server_state import Site

_HEADER = {"openai": "x-ratelimit-{}-requests", "anthropic": "anthropic-ratelimit-requests-{}"}


def ask(site: Site, call: Call) -> Response:
    """POST /v1/chat/completions, /v1/responses or /v1/messages."""
    headers = _take(site, call.provider)
    body = call.json()
    try:
        question = read_question(call.provider, body, _custom_id(call, body))
    except ValueError as error:
        raise Refused(400, str(error), headers=headers) from error
    site.pause(site.timing.latency)
    said, bill = answer(site, question, path=call.path, batch=None)
    site.ledger.bill([bill])
    return call.commit(site, as_json(said, headers=headers))


def _custom_id(call: Call, body: dict[str, Any]) -> str | None:
    """What the call says it is for."""
    metadata = body.get("metadata") or {}
    return call.headers.get("X-R2V-Custom-Id") or metadata.get("custom_id") or metadata.get("user_id")


def _take(site: Site, provider: str) -> dict[str, str]:
    """Take the call from its bucket; headers that tell how full it is. Raises Refused."""
    taken = site.take_call(provider)
    if taken is None:
        return {}
    left, wait = taken
    full = site.until_full(provider)
    reset = f"{full:.3f}s" if provider == "openai" else datetime.fromtimestamp(site.now() + full, UTC).isoformat()
    headers = {
        _HEADER[provider].format("limit"): str(site.limits.calls_per_minute),
        _HEADER[provider].format("remaining"): str(left),
        _HEADER[provider].format("reset"): reset,
    }
    if wait > 0:
        headers |= {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(1000 * wait))}
        raise Refused(
            429,
            f"Rate limit reached: {site.limits.calls_per_minute} calls a minute",
            code="rate_limit_exceeded",
            headers=headers,
        )
    return headers
