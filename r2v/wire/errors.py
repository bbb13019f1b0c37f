"""Errors by their structure: status, code and shape of the body. Messages are for people and decide nothing.

The same failure may arrive as an HTTP status, an `error` under status 200, a line of a batch or an event of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from r2v.wire.message import mapping
from r2v.wire.sse import write_event

ErrorKind = Literal["retry", "refused", "filtered", "overflow", "account"]
"""retry: transient. refused: this request, or every request, is refused; the results of the others decide which.
filtered: the content is refused. overflow: the request is longer than the model's context. account: the key or the
account may be at fault."""

_ACCOUNT = {
    "insufficient_quota", "billing_error", "billing_not_active", "billing_hard_limit_reached", "account_deactivated",
    "authentication_error", "invalid_api_key", "permission_error", "permission_denied", "unauthenticated",
    "access_terminated", "insufficient_credits", "insufficient_balance", "budget_exceeded", "model_not_found",
    "deployment_not_found", "deploymentnotfound", "invalid_authentication", "account_on_hold",
    "unsupported_country_region_territory", "organization_disabled", "auth_error", "api_key_invalid", "arrearage",
    "exceeded_current_quota_error", "insufficient_balance_error", "insufficient_g1_credits_balance",
    "1113", "1008", "3036", "30011",  # the balance is used up: Zhipu, MiniMax, Workers AI, SiliconFlow
    "precondition_failed",  # the account is suspended: Fireworks
}  # fmt: skip
_FILTERED = {
    "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt", "moderation",
    "moderation_blocked", "cyber_policy", "bio_policy", "image_content_policy_violation", "data_inspection_failed",
    "hooks_failed",  # a guardrail of Portkey
}  # fmt: skip
_OVERFLOW = {
    "context_length_exceeded", "exceed_context_size_error", "request_too_large", "string_above_max_length",
    "prompt_too_long", "context_window_exceeded", "contextwindowexceedederror", "input_too_long", "tokens_exceeded",
}  # fmt: skip
_OVERFLOW_WORDS = (
    "exceeds the available context size", "maximum context length", "context length", "prompt is too long",
    "input is too long", "context window", "maximum number of tokens", "`max_new_tokens` must be <=",
    "`inputs` must have less than",
)  # fmt: skip
"""Phrases of servers without a code. Only this kind is recognised by its message, and no retry depends on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireError:
    """An error of a server. `status`: of HTTP or of the body; None if neither has one. `codes`: code and type, in lower
    case, numbers last. `retry_after`: requested delay in seconds."""

    status: int | None = None
    codes: tuple[str, ...] = ()
    message: str = ""
    filtered: bool = False
    """True if the body holds the verdict of a content filter."""
    retry_after: float | None = None

    @property
    def kind(self) -> ErrorKind:
        """Kind of the error, which decides its handling."""
        codes = set(self.codes)
        if self.filtered or codes & _FILTERED:
            return "filtered"
        if codes & _OVERFLOW or self.status == 413 or self._says_overflow:
            return "overflow"
        if codes & _ACCOUNT or self.status in (401, 402):
            return "account"
        if self.status is None:
            return "refused" if any("invalid" in code or "not_found" in code for code in codes) else "retry"
        return "retry" if self.status >= 500 or self.status in (408, 409, 425, 429) else "refused"

    @property
    def _says_overflow(self) -> bool:
        text = self.message.lower()
        may_overflow = self.status is None or self.status in (400, 422) or self.status >= 500
        return may_overflow and any(words in text for words in _OVERFLOW_WORDS)

    @property
    def line(self) -> str:
        """Status, code and message in one line."""
        words = [str(self.status)] if self.status is not None else []
        words += [code for code in self.codes if code != str(self.status)][:1]
        return ": ".join([*words, *([self.message] if self.message else [])]) or "an error without a message"


def read_error(status: int | None, body: Any, *, retry_after: float | None = None) -> WireError:
    """Return the error in a body of any shape: {"error": {...}}, {"error": "..."}, {"detail": ...}, {"message": ...}, a
    list of these, JSON in text, or text. status: of HTTP; it has precedence over one in the body."""
    if isinstance(body, (bytes, str)):
        text = body.decode(errors="replace") if isinstance(body, bytes) else body
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = text.strip()
    while isinstance(body, list) and body:
        body = body[0]
    fields = body if isinstance(body, Mapping) else {"error": body or ""}
    listed = fields.get("errors")  # Workers AI, watsonx
    inner = fields.get("error") or (listed[0] if isinstance(listed, list) and listed else fields)
    inner = inner if isinstance(inner, Mapping) else {"message": inner}
    message = next((inner[name] for name in _MESSAGES if inner.get(name)), "") or fields.get("message") or ""
    message = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False, default=str)
    if message.startswith("{"):  # gateways put their upstream's error as text into their own
        nested = read_error(status, message, retry_after=retry_after)
        if nested.codes or nested.message != message:
            return nested
    details = [detail for detail in inner.get("details") or () if isinstance(detail, Mapping)]
    moved = mapping(inner.get("provider_specific_fields"))  # by LiteLLM
    verdict = mapping(inner.get("innererror")) or mapping(moved.get("innererror"))
    codes = [part.get(name) for part in (inner, fields, verdict) for name in ("code", "type", "status", "status_code")]
    words = [str(code).lower() for code in (*codes, *(detail.get("reason") for detail in details)) if code]
    given = next((int(word) for word in words if word.isdecimal() and 400 <= int(word) < 600), None)
    return WireError(
        status=status if status is not None and status >= 300 else given,
        codes=tuple(dict.fromkeys(word for word in sorted(words, key=str.isdecimal) if word != "error")),
        message=message,
        filtered="content_filter_result" in verdict or not _VERDICTS.isdisjoint(mapping(inner.get("metadata"))),
        retry_after=retry_after if retry_after is not None else _retry_info(details),
    )


_MESSAGES = ("message", "msg", "detail", "status_msg")
_VERDICTS = frozenset({"reasons", "flagged_input"})
"""OpenRouter's fields of a moderated request."""


def _retry_info(details: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of Google's RetryInfo ("retryDelay": "13.4s"); None without one."""
    delays = [str(detail.get("retryDelay") or "").removesuffix("s") for detail in details]
    return next((float(delay) for delay in delays if delay.replace(".", "", 1).isdecimal()), None)


_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip
"""Anthropic's error types by status; others: api_error."""


def write_error(wire: str, status: int, message: str, *, code: str | None = None) -> dict[str, Any]:
    """Return the error body of a format (chat, responses or messages)."""
    if wire == "messages":
        return {"type": "error", "error": {"type": _TYPES.get(status, "api_error"), "message": message}}
    kind = {402: "insufficient_quota"}.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or kind}}


def write_error_event(wire: str, message: str) -> bytes:
    """Return the event that reports a broken stream in a format, as an error that its clients may retry."""
    if wire == "messages":
        return write_event(write_error(wire, 500, message), name="error")
    if wire == "chat":
        return write_event(write_error(wire, 500, message))
    error = {"code": "server_error", "message": message}
    failed = {"id": "resp_r2v_failed", "object": "response", "status": "failed", "error": error, "output": []}
    return write_event({"type": "response.failed", "response": failed}, name="response.failed")


_CODES = {"invalid_encrypted_content", "invalid_signature", "thinking_signature_invalid"}
_WORDS = ("signature", "encrypted_content", "encrypted content")
_BLOCKS = ("thinking", "redacted_thinking")


def names_thoughts(wire: str, error: WireError) -> bool:
    """True if an error says that a signature or an encrypted thought is invalid: only the model and the account that
    made one accept it. Anthropic has no code for it."""
    if error.status is None or not 400 <= error.status < 500:
        return False
    if _CODES & set(error.codes):
        return True
    text = error.message.lower()
    return error.status == 400 and "invalid" in text and any(word in text for word in _WORDS) and wire != "chat"


def without_thoughts(wire: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body without the thoughts in its conversation."""
    if wire == "responses":
        items = [_item(item) for item in body.get("input") or () if not _is_empty_reasoning(item)]
        return {**body, "input": items}
    return {**body, "messages": [_message(message) for message in body.get("messages") or ()]}


def _is_empty_reasoning(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") == "reasoning" and not item.get("content")


def _item(item: Any) -> Any:
    if isinstance(item, Mapping) and item.get("type") == "reasoning":
        return {name: value for name, value in item.items() if name != "encrypted_content"}
    return item


def _message(message: Any) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    blocks = [block for block in content if not (isinstance(block, Mapping) and block.get("type") in _BLOCKS)]
    return {**message, "content": blocks or [{"type": "text", "text": "(thought)"}]}
