"""Request results: the outcome of each request of a batch, a file of rows written when the batch is accepted.

A row is `KIND \\t custom_id as JSON \\t the line as the provider writes it`. Downloads stream rows from disk, so a
batch of 50,000 costs no memory; a cancel only remembers how many rows were run before it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from r2v.emulator.bodies import error_body

RowKind = Literal["ok", "error", "expired", "canceled", "missing"]

LINE_FAULTS: dict[str, tuple[int, str, str | None]] = {
    "line_400": (400, "messages: the request is not valid", "invalid_value"),
    "line_429": (429, "Rate limit reached for requests", "rate_limit_exceeded"),
    "line_500": (500, "The server had an error while processing your request", "server_error"),
}
"""Faults of a line whose error is an HTTP status: (status, message, OpenAI's code)."""

_GONE = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "canceled": ("batch_cancelled", "This request was cancelled before it was run."),
}


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One request's outcome and its line in the result file (without a line end; empty where it has none)."""

    kind: RowKind
    custom_id: str
    line: bytes

    def encode(self) -> bytes:
        """The row as the file holds it."""
        return b"\t".join([self.kind.encode(), json.dumps(self.custom_id).encode(), self.line]) + b"\n"


def read_rows(path: Path, provider: str, kept: int | None = None) -> Iterator[ResultRow]:
    """The rows in order. Those from `kept` on were cancelled before they were run."""
    with path.open("rb") as file:
        for index, text in enumerate(file):
            kind, custom_id, line = text[:-1].split(b"\t", 2)
            name = json.loads(custom_id)
            if kept is not None and index >= kept:
                yield unrun_row(provider, "canceled", name)
            else:
                yield ResultRow(kind.decode(), name, line)  # type: ignore[arg-type]


def count_rows(rows: Iterator[ResultRow]) -> dict[str, int]:
    """How many rows of each kind."""
    return dict(Counter(row.kind for row in rows))


def _encode(obj: Any) -> bytes:
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()


def succeeded_row(provider: str, custom_id: str, body: dict[str, Any]) -> ResultRow:
    """A request that was answered."""
    if provider == "anthropic":
        return ResultRow(
            "ok", custom_id, _encode({"custom_id": custom_id, "result": {"type": "succeeded", "message": body}})
        )
    return ResultRow(
        "ok",
        custom_id,
        _openai(custom_id, response={"status_code": 200, "request_id": f"req_{body['id']}", "body": body}),
    )


def failed_row(
    provider: str,
    custom_id: str,
    status: int,
    message: str,
    *,
    code: str | None = None,
    kind: str | None = None,
    param: str | None = None,
) -> ResultRow:
    """A request that was refused with this status. OpenAI tells it in the response and leaves `error` null."""
    body = error_body(provider, status, message, code=code, kind=kind, param=param)
    if provider == "anthropic":
        return ResultRow(
            "error", custom_id, _encode({"custom_id": custom_id, "result": {"type": "errored", "error": body}})
        )
    return ResultRow(
        "error",
        custom_id,
        _openai(custom_id, response={"status_code": status, "request_id": "req_emulated", "body": body}),
    )


def unknown_error_row(provider: str, custom_id: str) -> ResultRow:
    """A request that failed in a way no client knows: a code that is a word, an error type that is new."""
    if provider == "anthropic":
        return failed_row(provider, custom_id, 500, "Something new happened", kind="novel_error")
    return ResultRow(
        "error", custom_id, _openai(custom_id, error={"code": "server_error", "message": "Something happened"})
    )


def unrun_row(provider: str, kind: Literal["expired", "canceled"], custom_id: str) -> ResultRow:
    """A request that was not run."""
    if provider == "anthropic":
        return ResultRow(kind, custom_id, _encode({"custom_id": custom_id, "result": {"type": kind}}))
    code, message = _GONE[kind]
    return ResultRow(kind, custom_id, _openai(custom_id, error={"code": code, "message": message}))


def _openai(custom_id: str, *, response: dict[str, Any] | None = None, error: dict[str, Any] | None = None) -> bytes:
    return _encode({"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": response, "error": error})
