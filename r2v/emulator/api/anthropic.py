"""Anthropic endpoints: messages and message batches."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from r2v.emulator.api.calls import Call, Response, as_json
from r2v.emulator.batches.lifecycle import Entry, accept
from r2v.emulator.batches.polling import BatchView, archived, cancel, view_batch
from r2v.emulator.batches.request_results import read_rows
from r2v.emulator.bodies import ApiError, parse_request
from r2v.emulator.server_state import EmulatedBatch, ServerState

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DAY = 86_400
_COUNTED = {"succeeded": "ok", "errored": "error", "canceled": "canceled", "expired": "expired"}


def create(state: ServerState, call: Call) -> Response:
    """POST /v1/messages/batches. Parameters are validated when a request runs: bad ones become errored results."""
    limits = state.limits.anthropic
    if call.size > limits.bytes:
        raise ApiError(413, f"Request exceeds the maximum size: {call.size} bytes, {limits.bytes} are allowed")
    entries = _entries(call.json(), limits.requests)
    if state.created_lately("anthropic") >= limits.batches_per_hour:
        raise ApiError(429, "This request would exceed your organization's rate limit", headers={"retry-after": "60"})
    queued = sum(batch.total for batch in state.unfinished("anthropic"))
    faults = state.injector.draw("batch", "anthropic", "create")
    if "token_limit_refused" in faults or (
        limits.queued_requests is not None and queued + len(entries) > limits.queued_requests
    ):
        raise ApiError(429, f"Too many requests in the processing queue: {queued} are there")
    batch = EmulatedBatch(
        id=state.new_id("msgbatch_"),
        provider="anthropic",
        created_at=state.now(),
        total=len(entries),
        faults=sorted(faults),
        endpoint="/v1/messages",
    )
    accept(state, batch, entries)
    return call.commit(state, as_json(_view(state, call, batch, BatchView(progress=0.0))))


def _entries(body: dict[str, Any], limit: int) -> list[Entry]:
    requests = body.get("requests")
    if not isinstance(requests, list) or not requests:
        raise ApiError(400, "requests: at least one request is required")
    if len(requests) > limit:
        raise ApiError(400, f"requests: {len(requests)} requests, {limit} are allowed")
    seen: set[str] = set()
    for index, request in enumerate(requests):
        if not isinstance(request, dict):
            raise ApiError(400, f"requests.{index}: must be an object")
        name = request.get("custom_id")
        if not isinstance(name, str) or not _CUSTOM_ID.fullmatch(name):
            raise ApiError(400, f"requests.{index}.custom_id: must match ^[a-zA-Z0-9_-]{{1,64}}$")
        if name in seen:
            raise ApiError(400, f"requests.{index}.custom_id: {name} is there twice")
        if not isinstance(request.get("params"), dict):
            raise ApiError(400, f"requests.{index}.params: field required")
        seen.add(name)
    return [(request["custom_id"], request["params"]) for request in requests]


def batches(state: ServerState, call: Call) -> Response:
    """GET /v1/messages/batches, newest first; `after_id` continues with older ones, `before_id` with newer ones."""
    shown = [batch for batch in state.batches_of("anthropic") if not state.is_hidden(batch)]
    names, limit = [batch.id for batch in shown], call.limit
    after, before = call.query.get("after_id"), call.query.get("before_id")
    for name in (after, before):
        if name is not None and name not in names:
            raise ApiError(400, f"{name}: no such batch in this list")
    start = names.index(after) + 1 if after else 0
    stop = min(start + limit, len(shown))
    if before:
        start, stop = max(0, names.index(before) - limit), names.index(before)
    page = [_view(state, call, batch, view_batch(state, batch, poll=False)) for batch in shown[start:stop]]
    return as_json(
        {
            "data": page,
            "has_more": start > 0 if before else stop < len(shown),
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
        }
    )


def poll(state: ServerState, call: Call, name: str) -> Response:
    """GET /v1/messages/batches/{id}."""
    batch = _find(state, name)
    return as_json(_view(state, call, batch, view_batch(state, batch, poll=True)))


def stop(state: ServerState, call: Call, name: str) -> Response:
    """POST /v1/messages/batches/{id}/cancel."""
    batch = _find(state, name)
    if not cancel(state, batch):
        raise ApiError(400, f"Batch {name} cannot be canceled: it has ended")
    return as_json(_view(state, call, batch, view_batch(state, batch, poll=False)))


def delete(state: ServerState, call: Call, name: str) -> Response:
    """DELETE /v1/messages/batches/{id}, allowed only after its end."""
    batch = _find(state, name)
    if batch.ended_at is None:
        raise ApiError(400, f"Batch {name} cannot be deleted before it has ended")
    batch.deleted = True
    state.save_batch(batch)
    return as_json({"id": name, "type": "message_batch_deleted"})


def results(state: ServerState, call: Call, name: str) -> Response:
    """GET /v1/messages/batches/{id}/results."""
    batch = _find(state, name)
    if batch.ended_at is None:
        raise ApiError(400, f"Batch {name} has no results yet")
    if archived(state, batch):
        raise ApiError(404, f"The results of batch {name} are no longer available")
    path, num_run = state.results_path(name), batch.kept
    return call.download(state, lambda: (row for row in read_rows(path, "anthropic", num_run) if row.line))


def elsewhere(state: ServerState, call: Call, name: str) -> Response:
    """Serve the results on another host and record in the ledger if a key was sent along."""
    state.ledger.leak(call.path, "x-api-key" in call.headers or "authorization" in call.headers)
    return results(state, call, name)


def count(state: ServerState, call: Call) -> Response:
    """POST /v1/messages/count_tokens."""
    request = parse_request("anthropic", {"max_tokens": 1} | call.json(), None)
    return as_json({"input_tokens": request.tokens_in})


def _find(state: ServerState, name: str) -> EmulatedBatch:
    batch = state.batches.get(name)
    if batch is None or batch.provider != "anthropic" or batch.deleted:
        raise ApiError(404, f"No batch {name}")
    return batch


def _view(state: ServerState, call: Call, batch: EmulatedBatch, view: BatchView) -> dict[str, Any]:
    ended = batch.ended_at is not None and not view.unknown_status
    counts = {name: batch.counts.get(kind, 0) if ended else 0 for name, kind in _COUNTED.items()}
    gone = archived(state, batch)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": _status(view, ended),
        "request_counts": {"processing": 0 if ended else batch.total, **counts},
        "created_at": _date(batch.created_at),
        "expires_at": _date(batch.created_at + _DAY),
        "ended_at": _date(batch.ended_at) if ended else None,
        "cancel_initiated_at": _date(batch.cancel_at),
        "archived_at": _date(state.now()) if ended and gone else None,
        "results_url": _results_url(call, batch) if ended else None,
    }


def _status(view: BatchView, ended: bool) -> str:
    if view.unknown_status:
        return "under_review"
    return "ended" if ended else "canceling" if view.canceling else "in_progress"


def _results_url(call: Call, batch: EmulatedBatch) -> str:
    host = call.headers.get("Host", "")
    if "results_other_host" in batch.faults:
        return f"http://localhost:{host.rpartition(':')[2]}/elsewhere/{batch.id}/results"
    return f"http://{host}/v1/messages/batches/{batch.id}/results"


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
