"""What a provider's word means: an answer, ask again, never, or stop and look at the account.

Providers say the same thing in many ways: a status inside a batch's line, a string code, an error type, a message.
Here they all become one of four kinds (`Verdict.kind`). What nobody knows is asked again: tries are counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from r2v.llm.providers.prices import Tokens
from r2v.llm.providers.provider_requests import Kind, Line, Verdict

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
_NAME = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_LONGEST = 300


def one_line(text: object, secret: str = "") -> str:
    """A provider's words as one short line that tells no key."""
    words = " ".join(str(text).split())
    if secret:
        words = words.replace(secret, "[key]")
    return _KEY.sub("[key]", words)[:_LONGEST]


def kind_of(status: int | None, code: object = None, message: object = "") -> Kind:
    """The kind of an error: its HTTP status where it has one, its code or type, its message."""
    said = f"{code or ''} {message or ''}"
    if status in (401, 403) or _ACCOUNT.search(said):
        return "account"
    if status is not None:
        return "retry" if status in (408, 409, 429) or status >= 500 else "fatal"
    if _RETRY.search(str(code)):
        return "retry"
    return "fatal" if "invalid" in str(code) or "not_found" in str(code) or "too_large" in str(code) else "retry"


def failure(status: int | None, error: object) -> Verdict:
    """The verdict of an error object ({code, type, message}, or whatever stands in its place)."""
    known = error if isinstance(error, Mapping) else {"message": error}
    code = known.get("code") or known.get("type")
    kind = kind_of(status, f"{known.get('type') or ''} {known.get('code') or ''}".strip() or None, known.get("message"))
    words = [str(part) for part in (status, code, known.get("message")) if part]
    return Verdict(kind=kind, reason=one_line(": ".join(words) or "an error without words"), billed=False)


def openai_answer(body: Mapping[str, Any]) -> Verdict:
    """The verdict of a chat completion."""
    usage = body.get("usage")
    tokens = None
    if usage:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        tokens = Tokens(fresh=usage["prompt_tokens"] - cached, cached=cached, output=usage["completion_tokens"])
    choice = (body.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    ended = choice.get("finish_reason")
    if ended == "content_filter" or message.get("refusal"):
        return Verdict(kind="fatal", reason=one_line(f"refused: {message.get('refusal') or ended}"), tokens=tokens)
    return _spoken(message.get("content"), ended == "length", tokens)


def anthropic_answer(body: Mapping[str, Any]) -> Verdict:
    """The verdict of a message."""
    usage = body.get("usage")
    tokens = None
    if usage:
        written = usage.get("cache_creation_input_tokens") or 0
        hour = (usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens")
        hour = written if hour is None else hour
        tokens = Tokens(
            fresh=usage["input_tokens"],
            cached=usage.get("cache_read_input_tokens") or 0,
            write_1h=hour,
            write_5m=written - hour,
            output=usage["output_tokens"],
        )
    if body.get("stop_reason") == "refusal":
        return Verdict(kind="fatal", reason="refused: stop_reason refusal", tokens=tokens)
    text = "".join(block.get("text", "") for block in body.get("content") or () if block.get("type") == "text")
    return _spoken(text, body.get("stop_reason") == "max_tokens", tokens)


def _spoken(text: object, cut: bool, tokens: Tokens | None) -> Verdict:
    if not isinstance(text, str) or not text.strip():
        reason = "max_tokens spent without a text" if cut else "an answer without text"
        return Verdict(kind="fatal", reason=reason, tokens=tokens)
    return Verdict(kind="ok", text=text, cut=cut, tokens=tokens)


def openai_line(row: Mapping[str, Any]) -> Verdict:
    """The verdict of one line of an OpenAI output or error file."""
    response, error = row.get("response"), row.get("error")
    if response is None:
        return failure(None, error)
    status, body = response["status_code"], response["body"]
    if 200 <= status < 300 and not error:
        return openai_answer(body)
    return failure(status, (body.get("error") if isinstance(body, Mapping) else None) or error)


def anthropic_line(row: Mapping[str, Any]) -> Verdict:
    """The verdict of one line of a Message Batch's results."""
    result = row["result"]
    if result["type"] == "succeeded":
        return anthropic_answer(result["message"])
    if result["type"] == "errored":
        error = result.get("error") or {}
        return failure(None, error.get("error", error))
    return failure(None, {"code": result["type"], "message": f"the request was {result['type']}"})


def read_line(raw: bytes, read: Callable[[Mapping[str, Any]], Verdict]) -> Line:
    """A raw line of results; a malformed one has no verdict, and a custom_id where that can be made out."""
    try:
        row = json.loads(raw)
        return Line(custom_id=str(row["custom_id"]), verdict=read(row))
    except (ValueError, KeyError, TypeError, AttributeError):
        found = _NAME.search(raw)
        return Line(custom_id=found[1].decode() if found else None, verdict=None)
