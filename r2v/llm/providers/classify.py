"""Error classification: every answer and error of a provider becomes one of five kinds of verdict.

Providers report the same error in many ways: an HTTP status inside a batch's line, a code, an error type, a message.
`RequestVerdict.kind` is ok, retry, silent, fatal or account. An error that matches nothing known is retried, because
giving up would lose a request that may be answered, and attempts are counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from r2v.llm.providers.prices import TokenCounts
from r2v.llm.providers.provider_requests import RequestVerdict, ResultLine, VerdictKind
from r2v.llm.providers.tool_calls import action_text

_ACCOUNT = re.compile(
    r"credit balance|insufficient_quota|exceeded your current quota|billing|authentication|"
    r"permission|model_not_found|invalid_api_key|on hold",
    re.I,
)
_RETRY = re.compile(
    r"rate_limit|overloaded|api_error|server_error|timeout|batch_expired|batch_cancelled|expired|"
    r"cancell?ed|conflict",
    re.I,
)
_KEY = re.compile(r"\b(sk|key)-[A-Za-z0-9_*-]{6,}")
_CUT = ("max_tokens", "model_context_window_exceeded")
"""Stop reasons of a message that is not whole: at Anthropic a reply may also end where the context does."""
_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_LONGEST = 300


def one_line(text: object, secret: str = "") -> str:
    """A provider's message as one short line without any key: error messages may quote the key that was sent."""
    line = " ".join(str(text).split())
    if secret:
        line = line.replace(secret, "[key]")
    return _KEY.sub("[key]", line)[:_LONGEST]


def kind_of(status: int | None, code: object = None, message: object = "") -> VerdictKind:
    """The kind of an error: its HTTP status where it has one, its code or type, its message."""
    # before the status: exhausted credit comes as a 400 at Anthropic and as a 429 at OpenAI
    if status in (401, 403) or _ACCOUNT.search(f"{code or ''} {message or ''}"):
        return "account"
    if status is not None:
        return "retry" if status in (408, 409, 429) or status >= 500 else "fatal"
    if _RETRY.search(str(code)):
        return "retry"
    return "fatal" if "invalid" in str(code) or "not_found" in str(code) or "too_large" in str(code) else "retry"


def failure(status: int | None, error: object) -> RequestVerdict:
    """The verdict of an error object ({code, type, message}, or whatever stands in its place)."""
    fields = error if isinstance(error, Mapping) else {"message": error}
    code, message = fields.get("code") or fields.get("type"), fields.get("message")
    type_and_code = f"{fields.get('type') or ''} {fields.get('code') or ''}".strip()
    kind = kind_of(status, type_and_code or None, message)
    words = [str(part) for part in (status, code, message) if part]
    return RequestVerdict(kind=kind, reason=one_line(": ".join(words) or "an error without a message"), billed=False)


def openai_answer(body: Mapping[str, Any]) -> RequestVerdict:
    """The verdict of a chat completion."""
    usage = body.get("usage")
    tokens = None
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        cached, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
        tokens = TokenCounts(
            fresh=usage["prompt_tokens"] - cached - written,
            cached=cached,
            write_5m=written,
            output=usage["completion_tokens"],
        )
    choice = (body.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    finish_reason = choice.get("finish_reason")
    if finish_reason == "content_filter" or message.get("refusal"):
        return RequestVerdict(
            kind="fatal", reason=one_line(f"refused: {message.get('refusal') or finish_reason}"), tokens=tokens
        )
    called = [
        action_text(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()
    ]
    return completion_verdict(called[0] if called else message.get("content"), finish_reason == "length", tokens)


def anthropic_answer(body: Mapping[str, Any]) -> RequestVerdict:
    """The verdict of a message."""
    usage = body.get("usage")
    tokens = None
    if usage:
        written = usage.get("cache_creation_input_tokens") or 0
        written_1h = (usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens")
        # without a breakdown, count all writes as the dearer kind: our requests ask for the one-hour cache
        written_1h = written if written_1h is None else written_1h
        tokens = TokenCounts(
            fresh=usage["input_tokens"],
            cached=usage.get("cache_read_input_tokens") or 0,
            write_1h=written_1h,
            write_5m=written - written_1h,
            output=usage["output_tokens"],
        )
    if body.get("stop_reason") == "refusal":
        return RequestVerdict(kind="fatal", reason="refused: stop_reason refusal", tokens=tokens)
    blocks = body.get("content") or ()
    called = [action_text(block["name"], block["input"]) for block in blocks if block.get("type") == "tool_use"]
    text = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
    return completion_verdict(called[0] if called else text, body.get("stop_reason") in _CUT, tokens)


def completion_verdict(text: object, cut: bool, tokens: TokenCounts | None) -> RequestVerdict:
    """The verdict of an answer with this text, which a provider may leave empty; cut: it ended at its limit."""
    if not isinstance(text, str) or not text.strip():
        # who thought until the tokens were spent would do so again; after an empty answer often comes a whole one
        if cut:
            return RequestVerdict(kind="fatal", reason="max_tokens were used up before any text", tokens=tokens)
        return RequestVerdict(kind="silent", reason="a completion without text", tokens=tokens)
    return RequestVerdict(kind="ok", text=text, cut=cut, tokens=tokens)


def openai_line(
    row: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], RequestVerdict] = openai_answer
) -> RequestVerdict:
    """The verdict of one line of an OpenAI output or error file; `answer` reads what its endpoint gives."""
    response, error = row.get("response"), row.get("error")
    if response is None:
        return failure(None, error)
    status, body = response["status_code"], response["body"]
    if 200 <= status < 300 and not error:
        return answer(body)
    return failure(status, (body.get("error") if isinstance(body, Mapping) else None) or error)


def anthropic_line(row: Mapping[str, Any]) -> RequestVerdict:
    """The verdict of one line of a Message Batch's results."""
    result = row["result"]
    if result["type"] == "succeeded":
        return anthropic_answer(result["message"])
    if result["type"] == "errored":
        error = result.get("error") or {}
        return failure(None, error.get("error", error))
    return failure(None, {"code": result["type"], "message": f"the request was {result['type']}"})


def read_line(raw: bytes, read: Callable[[Mapping[str, Any]], RequestVerdict]) -> ResultLine:
    """A raw line of results. A malformed one has no verdict, and its custom_id where that can be made out: the request
    was run and billed, so it must not count as missing."""
    try:
        row = json.loads(raw)
        return ResultLine(custom_id=str(row["custom_id"]), verdict=read(row))
    except (ValueError, KeyError, TypeError, AttributeError):
        match = _CUSTOM_ID.search(raw)
        return ResultLine(custom_id=match[1].decode() if match else None, verdict=None)
