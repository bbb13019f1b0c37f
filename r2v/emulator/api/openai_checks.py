"""OpenAI's validation: errors of the create call, and errors found while a batch is validated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r2v.emulator.bodies import ApiError, parse_request
from r2v.emulator.server_state import EmulatedBatch, ServerState

ENDPOINTS = ("/v1/chat/completions", "/v1/responses")
"""Endpoints that the emulator answers, in batches and directly."""

_SHOWN = 100
"""Largest number of errors that a refused batch lists."""


def check_create(body: dict[str, Any]) -> None:
    """Raise ApiError if the create call is invalid."""
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(body.get(name), str):
            raise ApiError(400, f"Missing required parameter: '{name}'.", code="missing_required_parameter")
    if body["endpoint"] not in ENDPOINTS:
        raise ApiError(
            400, f"endpoint {body['endpoint']}: the emulator answers {', '.join(ENDPOINTS)}", code="invalid_value"
        )
    if body["completion_window"] != "24h":
        raise ApiError(400, f"completion_window {body['completion_window']}: allowed: 24h", code="invalid_value")
    metadata = body.get("metadata") or {}
    if len(metadata) > 16 or any(len(key) > 64 or len(str(value)) > 512 for key, value in metadata.items()):
        raise ApiError(
            400, "metadata: at most 16 pairs, keys of 64 and values of 512 characters", code="invalid_metadata"
        )
    expiry = body.get("output_expires_after")
    if expiry is not None and not (
        expiry.get("anchor") == "created_at" and 3_600 <= expiry.get("seconds", 0) <= 2_592_000
    ):
        raise ApiError(400, "output_expires_after: anchor created_at and 3600 to 2592000 seconds", code="invalid_value")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a validated input file."""
    with path.open("rb") as file:
        yield from (json.loads(line) for line in file if line.strip())


def validate_batch(state: ServerState, batch: EmulatedBatch, path: Path) -> None:
    """Read the input file and set the batch's total, model and, if it is refused, errors."""
    models: Counter[str] = Counter()
    seen: set[str] = set()
    tokens = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            batch.total += 1
            problem = _problem(line, batch.endpoint, seen, models)
            if problem is not None and len(batch.errors) < _SHOWN:
                batch.errors.append({"code": problem[0], "line": number, "message": problem[1], "param": None})
            if state.limits.openai.queued_tokens is not None and problem is None:
                tokens += _prompt_tokens(line)
    batch.model = next(iter(models), "")
    batch.errors += _whole(state, batch, tokens)


def _problem(line: bytes, endpoint: str, seen: set[str], models: Counter[str]) -> tuple[str, str] | None:
    try:
        entry = json.loads(line)
        name, body = entry["custom_id"], entry["body"]
        method, url, model = entry["method"], entry["url"], body["model"]
    except (ValueError, TypeError):
        return "invalid_json_line", "This line is not parseable as valid JSON."
    except KeyError as error:
        return "missing_required_parameter", f"Missing required parameter: {error}."
    models[model] += 1
    if not isinstance(name, str) or not name or name in seen:
        return "duplicate_custom_id", "The custom_id for this request is a duplicate of another request."
    seen.add(name)
    if method != "POST" or url != endpoint:
        return "mismatched_url", f"{method} {url}: every request must be a POST to the batch's endpoint {endpoint}."
    if len(models) > 1:
        return "mismatched_model", "The provided model is not the same as of the other requests."
    return None


def _whole(state: ServerState, batch: EmulatedBatch, tokens: int) -> list[dict[str, Any]]:
    """Return the errors of the batch as a whole and those injected by faults."""
    limits = state.limits.openai
    errors: list[tuple[str, int | None, str]] = []
    queued = sum(b.tokens.get("prompt", 0) for b in state.unfinished("openai") if b.model == batch.model)
    if not batch.total:
        errors.append(("empty_file", None, "The input file is empty."))
    if batch.total > limits.requests:
        errors.append(("too_many_requests", None, f"{batch.total} requests in the file; {limits.requests} allowed."))
    if "token_limit_failed" in batch.faults or (
        limits.queued_tokens is not None and queued + tokens > limits.queued_tokens
    ):
        message = f"Enqueued token limit reached for {batch.model}. Limit: {limits.queued_tokens or 0} enqueued tokens."
        message += " Please try again once some in_progress batches have been completed."
        errors.append(("token_limit_exceeded", None, message))
    if "validation_failed" in batch.faults:
        errors += [("invalid_request", line, "The request body is not valid.") for line in range(1, batch.total + 1)]
    return [{"code": code, "line": line, "message": message, "param": None} for code, line, message in errors[:_SHOWN]]


def _prompt_tokens(line: bytes) -> int:
    try:
        return parse_request("openai", json.loads(line)["body"], None).tokens_in
    except ApiError:
        return 0
