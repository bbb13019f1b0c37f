"""Errors by their structure: status, code and shape of the body. Sentences are shown to people and decide nothing.

    error = read_error(429, {"error": {"code": "rate_limit_exceeded", "message": "..."}})
    error.kind                                          # "retry"

The same failure comes as an HTTP status, as an `error` under status 200, as a line of a batch, as an event of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ErrorKind = Literal["retry", "refused", "filtered", "overflow", "account"]
"""retry: it may pass. refused: this request is refused, or nobody's is: who else is refused decides. filtered: the
content is refused. overflow: the request is longer than the model's context. account: the key or the account may be
at fault."""

_RETRY = {
    "rate_limit_exceeded", "rate_limit_error", "rate_limited", "requests", "tokens", "resource_exhausted",
    "overloaded_error", "overloaded", "server_is_overloaded", "slow_down", "api_error", "server_error",
    "internal_error", "internal_server_error", "internalservererror", "internal", "unavailable", "service_unavailable",
    "timeout", "timeout_error", "request_timeout", "deadline_exceeded", "aborted", "conflict", "bad_gateway",
    "batch_expired", "batch_cancelled", "expired", "canceled", "cancelled", "vector_store_timeout",
}  # fmt: skip
_ACCOUNT = {
    "insufficient_quota", "billing_error", "billing_not_active", "billing_hard_limit_reached", "account_deactivated",
    "authentication_error", "invalid_api_key", "permission_error", "permission_denied", "unauthenticated",
    "access_terminated", "insufficient_credits", "insufficient_balance", "budget_exceeded", "model_not_found",
    "deployment_not_found", "deploymentnotfound", "invalid_authentication", "account_on_hold",
    "unsupported_country_region_territory", "organization_disabled",
}  # fmt: skip
_FILTERED = {
    "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt", "moderation",
    "moderation_blocked", "cyber_policy", "bio_policy", "image_content_policy_violation", "data_inspection_failed",
}  # fmt: skip
_OVERFLOW = {
    "context_length_exceeded", "exceed_context_size_error", "request_too_large", "string_above_max_length",
    "prompt_too_long", "context_window_exceeded", "contextwindowexceedederror", "input_too_long", "tokens_exceeded",
}  # fmt: skip
_OVERFLOW_WORDS = (
    "exceeds the available context size", "maximum context length", "context length", "prompt is too long",
    "input is too long", "context window", "exceed_context_size", "maximum number of tokens",
)  # fmt: skip
"""Servers that name no code say it in a sentence: the one kind that is told by words, and no wait depends on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireError:
    """An error as it came. `status`: of HTTP, or as the body says it; None where neither does. `codes`: its code and
    type, lower case. `retry_after`: seconds that the body asks for."""

    status: int | None = None
    codes: tuple[str, ...] = ()
    message: str = ""
    filtered: bool = False
    """Its body holds the verdict of a content filter."""
    retry_after: float | None = None

    @property
    def kind(self) -> ErrorKind:
        """What is to be done about it."""
        codes = set(self.codes)
        if self.filtered or codes & _FILTERED:
            return "filtered"
        if codes & _OVERFLOW or self.status == 413 or self._says_overflow:
            return "overflow"
        if codes & _ACCOUNT or self.status in (401, 402, 403):
            return "retry" if self.status == 429 and codes & _RETRY else "account"
        if self.status is not None and 300 <= self.status < 500:
            return "retry" if self.status in (408, 409, 425, 429) else "refused"
        if codes & _RETRY or self.status is None or self.status >= 500:
            return "retry" if codes & _RETRY or not self._says_invalid else "refused"
        return "retry"

    @property
    def _says_overflow(self) -> bool:
        text = self.message.lower()
        may = self.status is None or self.status in (400, 422) or self.status >= 500
        return may and any(words in text for words in _OVERFLOW_WORDS)

    @property
    def _says_invalid(self) -> bool:
        return self.status is None and any("invalid" in code or "not_found" in code for code in self.codes)

    @property
    def line(self) -> str:
        """It in one line: status, code, message."""
        words = [str(self.status)] if self.status is not None else []
        words += [code for code in self.codes[:1] if code != str(self.status)]
        return ": ".join([*words, *([self.message] if self.message else [])]) or "an error without a message"


def read_error(status: int | None, body: Any, *, retry_after: float | None = None) -> WireError:
    """The error in a body of any shape: {"error": {...}}, {"error": "..."}, {"detail": ...}, {"message": ...}, a list
    of these, JSON in text, or text. `status` decides over one that the body names."""
    if isinstance(body, (bytes, str)):
        text = body.decode(errors="replace") if isinstance(body, bytes) else body
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            return WireError(status=status, message=text.strip(), retry_after=retry_after)
    while isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, Mapping):
        return WireError(status=status, message="" if body is None else str(body), retry_after=retry_after)
    inner = body.get("error") or body.get("errors") or body
    inner = inner[0] if isinstance(inner, Sequence) and not isinstance(inner, str) and inner else inner
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {"message": inner}
    codes = [fields.get("code"), fields.get("type"), fields.get("status"), body.get("code"), body.get("status")]
    details = [detail for detail in fields.get("details") or () if isinstance(detail, Mapping)]
    message = next((fields[name] for name in ("message", "msg", "detail", "reason") if fields.get(name)), "")
    if not message and fields is not body:
        message = next((body[name] for name in ("message", "detail") if body.get(name)), "")
    words = [code for code in codes if isinstance(code, str) and code and not code.isdecimal()]
    numbers = [int(code) for code in codes if isinstance(code, (int, str)) and _is_status(code)]
    metadata = fields.get("metadata") if isinstance(fields.get("metadata"), Mapping) else {}
    inner_error = fields.get("innererror") if isinstance(fields.get("innererror"), Mapping) else {}
    assert isinstance(metadata, Mapping) and isinstance(inner_error, Mapping)
    if isinstance(inner_error.get("code"), str):
        words.append(inner_error["code"])
    return WireError(
        status=status if status is not None and status >= 300 else next(iter(numbers), None),
        codes=tuple(dict.fromkeys(word.lower() for word in words if word.lower() != "error")),
        message=message if isinstance(message, str) else json.dumps(message, ensure_ascii=False, default=str),
        filtered=any(key in metadata for key in ("reasons", "flagged_input")) or "content_filter_result" in inner_error,
        retry_after=retry_after if retry_after is not None else _retry_info(details),
    )


def _is_status(code: object) -> bool:
    return not isinstance(code, bool) and str(code).isdecimal() and 400 <= int(str(code)) < 600


def _retry_info(details: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of Google's RetryInfo ("retryDelay": "13.4s")."""
    for detail in details:
        delay = detail.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                return max(0.0, float(delay[:-1]))
            except ValueError:
                continue
    return None
