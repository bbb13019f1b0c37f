"""Verdicts of answers, errors and lines of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from r2v.llm.providers.provider_requests import RequestVerdict
from r2v.llm.providers.verdicts import anthropic_line, openai_line, read_line
from r2v.wire import anthropic, chat


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (
            {"response": {"status_code": 400, "body": {"error": {"message": "bad", "code": None}}}, "error": None},
            "fatal",
        ),
        ({"response": {"status_code": 429, "body": {"error": {"message": "slow", "code": "rate_limit"}}}}, "retry"),
        ({"response": {"status_code": 500, "body": {}}, "error": None}, "retry"),
        ({"response": None, "error": {"code": "batch_expired", "message": "late"}}, "retry"),
        ({"response": None, "error": {"code": "batch_cancelled"}}, "retry"),
        ({"response": None, "error": "nobody_knows_this"}, "retry"),
        ({"response": {"status_code": 429, "body": {"error": {"code": "insufficient_quota"}}}}, "account"),
    ],
)
def test_kinds_of_openai_lines(row: dict[str, Any], kind: str) -> None:
    assert openai_line(row, chat.read_reply).kind == kind


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ({"type": "expired"}, "retry"),
        ({"type": "canceled"}, "retry"),
        (
            {"type": "errored", "error": {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}},
            "retry",
        ),
        ({"type": "errored", "error": {"error": {"type": "invalid_request_error", "message": "x"}}}, "fatal"),
        (
            {
                "type": "errored",
                "error": {
                    "type": "error",
                    "error": {"type": "invalid_request_error", "message": "Your credit balance is too low"},
                },
            },
            "fatal",
        ),
        ({"type": "succeeded", "message": {"content": [], "stop_reason": "refusal"}}, "fatal"),
    ],
)
def test_kinds_of_anthropic_lines(result: dict[str, Any], kind: str) -> None:
    assert anthropic_line({"custom_id": "a", "result": result}, anthropic.read_reply).kind == kind


def test_an_unreadable_line_tells_its_name_where_it_can() -> None:
    def read(row: Mapping[str, Any]) -> RequestVerdict:
        return openai_line(row, chat.read_reply)

    assert read_line(b'{"custom_id": "r-c-0-0", "respo', read).custom_id == "r-c-0-0"
    assert read_line(b"\xff\xfe", read).custom_id is None
    nested = b'{"custom_id": "r-c-0-0", "response": ' + b"[" * 100_000
    assert read_line(nested, read).custom_id == "r-c-0-0" and read_line(nested, read).verdict is None
