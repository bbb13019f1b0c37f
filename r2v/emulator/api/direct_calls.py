"""Direct calls: one request, answer and bill each, rate-limited by a token bucket."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from r2v.emulator.answer_bodies import answer_body, answer_stream
from r2v.emulator.api.calls import Call, Response, as_json
from r2v.emulator.batches.lifecycle import complete_and_bill
from r2v.emulator.bodies import ApiError, parse_request
from r2v.emulator.server_state import ServerState
from r2v.emulator.signatures import refused_thought

_HEADER = {"openai": "x-ratelimit-{}-requests", "anthropic": "anthropic-ratelimit-requests-{}"}


def ask(state: ServerState, call: Call) -> Response:
    """POST /v1/chat/completions, /v1/responses or /v1/messages."""
    headers = _take(state, call.provider)
    body = call.json()
    try:
        request = parse_request(call.provider, body, _custom_id(call, body))
        refusal = state.refusal(call.provider, call.path, body) or refused_thought(call.path, request.model, body)
        if refusal is not None:
            raise refusal
    except ApiError as error:
        error.headers = headers
        raise
    state.pause(state.timing.latency)
    completion, bill = complete_and_bill(state, request, batch=None)
    state.ledger.bill([bill])
    if body.get("stream"):
        events = answer_stream(completion, call.path, state.now())
        return call.commit(state, Response(chunks=events, content_type="text/event-stream", headers=headers))
    return call.commit(state, as_json(answer_body(completion, call.path, state.now()), headers=headers))


def _custom_id(call: Call, body: dict[str, Any]) -> str | None:
    """Return the call's custom_id from R2V's header or the provider's metadata field."""
    metadata = body.get("metadata") or {}
    return call.headers.get("X-R2V-Custom-Id") or metadata.get("custom_id") or metadata.get("user_id")


def _take(state: ServerState, provider: str) -> dict[str, str]:
    """Take a call from the bucket and return the rate-limit headers. Raises ApiError if the bucket is empty."""
    grant = state.take_call(provider)
    if grant is None:
        return {}
    left, wait, full = grant
    reset = f"{full:.3f}s" if provider == "openai" else datetime.fromtimestamp(state.now() + full, UTC).isoformat()
    headers = {
        _HEADER[provider].format("limit"): str(state.limits.calls_per_minute),
        _HEADER[provider].format("remaining"): str(left),
        _HEADER[provider].format("reset"): reset,
    }
    if wait > 0:
        headers |= {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(1000 * wait))}
        raise ApiError(
            429,
            f"Rate limit reached: {state.limits.calls_per_minute} calls a minute",
            code="rate_limit_exceeded",
            headers=headers,
        )
    return headers
