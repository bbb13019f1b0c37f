"""Request results: one row per request of a batch, written to a file when the batch is accepted.

A row is `KIND \\t custom_id as JSON \\t the provider's line`. Downloads stream rows from disk, since a batch may have
100,000; a cancel stores only the number of rows run before it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from r2v.emulator.bodies import ApiError

RowKind = Literal["ok", "error", "expired", "canceled", "missing"]

_GONE = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "canceled": ("batch_cancelled", "This request was cancelled before it was run."),
}


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A request's outcome and its line in the result file (without a line end; empty without a line)."""

    kind: RowKind
    custom_id: str
    line: bytes

    def encode(self) -> bytes:
        """Return the row in the file's format."""
        return b"\t".join([self.kind.encode(), json.dumps(self.custom_id).encode(), self.line]) + b"\n"


def read_rows(path: Path, provider: str, num_run: int | None = None) -> Iterator[ResultRow]:
    """Yield the rows in order. Rows from index `num_run` on were cancelled before they ran; None: all ran."""
    with path.open("rb") as file:
        for index, text in enumerate(file):
            kind, custom_id, line = text[:-1].split(b"\t", 2)
            name = json.loads(custom_id)
            if num_run is not None and index >= num_run:
                yield unrun_row(provider, "canceled", name)
            else:
                yield ResultRow(kind.decode(), name, line)  # type: ignore[arg-type]


def count_rows(rows: Iterator[ResultRow]) -> dict[str, int]:
    """Return the number of rows by kind."""
    return dict(Counter(row.kind for row in rows))


def succeeded_row(provider: str, custom_id: str, body: dict[str, Any]) -> ResultRow:
    """Return the row of an answered request."""
    response = {"status_code": 200, "request_id": f"req_{body['id']}", "body": body}
    return _row(provider, "ok", custom_id, {"type": "succeeded", "message": body}, response=response)


def failed_row(provider: str, custom_id: str, error: ApiError) -> ResultRow:
    """Return the row of a refused request. OpenAI's has the error in `response` and leaves `error` null."""
    body = error.body(provider)
    response = {"status_code": error.status, "request_id": "req_emulated", "body": body}
    return _row(provider, "error", custom_id, {"type": "errored", "error": body}, response=response)


def unknown_error_row(provider: str, custom_id: str) -> ResultRow:
    """Return the row of a failure unknown to clients: a code that is a word, a new error type."""
    body = ApiError(500, "Something new happened", kind="novel_error").body(provider)
    error = {"code": "server_error", "message": "Something happened"}
    return _row(provider, "error", custom_id, {"type": "errored", "error": body}, error=error)


def unrun_row(provider: str, kind: Literal["expired", "canceled"], custom_id: str) -> ResultRow:
    """Return the row of a request that did not run."""
    code, message = _GONE[kind]
    return _row(provider, kind, custom_id, {"type": kind}, error={"code": code, "message": message})


def _row(
    provider: str,
    kind: RowKind,
    custom_id: str,
    result: dict[str, Any],
    *,
    response: dict[str, Any] | None = None,
    error: dict[str, Any] | None = None,
) -> ResultRow:
    """Return a row with Anthropic's `result`, or with OpenAI's `response` and `error`."""
    body: dict[str, Any] = {"custom_id": custom_id, "result": result}
    if provider == "openai":
        body = {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": response, "error": error}
    return ResultRow(kind, custom_id, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
