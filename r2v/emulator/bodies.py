"""Request and error bodies: parsing of requests for the answer functions, and errors in each provider's format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from r2v.emulator.answers import EmulatedRequest
from r2v.wire import anthropic, chat, responses
from r2v.wire.message import Message, Role, TextPart, ToolCall, ToolResult

Json = dict[str, Any]

ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    529: "overloaded_error",
}
OPENAI_ERRORS = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    429: "requests",
}


class ApiError(Exception):
    """An error of the emulated API, for a call or for one request of a batch. `kind` replaces the status's error type;
    `code` and `param` are OpenAI's."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        kind: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.kind, self.param, self.headers = status, code, kind, param, headers or {}

    def body(self, provider: str) -> Json:
        """Return the error in the provider's format."""
        if provider == "anthropic":
            return {
                "type": "error",
                "error": {"type": self.kind or ANTHROPIC_ERRORS.get(self.status, "api_error"), "message": str(self)},
                "request_id": "req_emulated",
            }
        return {
            "error": {
                "message": str(self),
                "type": self.kind or OPENAI_ERRORS.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }


def credit_error(provider: str) -> ApiError:
    """Return the provider's error for an account without credit."""
    if provider == "openai":
        message = "You exceeded your current quota, please check your plan and billing details."
        return ApiError(429, message, code="insufficient_quota", kind="insufficient_quota")
    message = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
    return ApiError(400, f"{message}upgrade or purchase credits.")


def parse_request(provider: str, body: Json, custom_id: str | None) -> EmulatedRequest:
    """Return the request in a body of chat/completions, responses or messages. Raises ApiError for an invalid body."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "you must provide a model parameter")
    limit = body.get("max_tokens")
    if provider == "anthropic" and (type(limit) is not int or limit < 1):
        raise ApiError(400, "max_tokens: must be an integer of at least 1")
    wire = anthropic if provider == "anthropic" else responses if "input" in body else chat
    try:
        messages = tuple(_apart(wire.read_request(body).conversation))
    except (AttributeError, KeyError, TypeError) as error:
        raise ApiError(400, f"messages: not understood: {error!r}") from error
    if not any(message.role != "system" for message in messages):
        raise ApiError(400, "messages: at least one message is required")
    return EmulatedRequest(provider=provider, model=model, messages=messages, custom_id=custom_id, body=body)


def _apart(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield each text, call and result of a conversation as a message, with the roles system, user, assistant, tool."""
    for message in messages:
        role: Role = "system" if message.role == "developer" else message.role
        for part in message.parts:
            if isinstance(part, ToolCall):
                yield Message(role="assistant", content=part.line)
            elif isinstance(part, ToolResult):
                yield Message(role="tool", content=part.text)
            elif isinstance(part, TextPart) and (part.text or isinstance(message.content, tuple)):
                yield Message(role=role, content=part.text)
