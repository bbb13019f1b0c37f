"""A client's request, read and checked, and the most that it can cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from r2v.llm.providers.prices import Rate
from r2v.serve.sessions import prefix
from r2v.serve.transport.body import RequestBody
from r2v.serve.transport.headers import Headers
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import WireRequest, first_number
from r2v.wire.stream_facts import WireName

_READERS: dict[WireName, Any] = {"chat": chat, "responses": responses, "messages": anthropic}
_LONGEST_OUTPUT = 131_072
"""Tokens of a reply that a request without a limit is booked at, where the model's context is not known."""
_HIDDEN_PROMPT = 1024
"""Tokens that providers add to a prompt with tools, at most."""


@dataclass(frozen=True, kw_only=True)
class ClientRequest:
    """A client's request."""

    wire: WireName
    query: str
    headers: Headers = field(repr=False)
    body: RequestBody
    key_name: str
    """Name of the key that it came with."""

    @cached_property
    def conversation(self) -> str:
        """Digest of its whole conversation."""
        return prefix(self.body.values, self.wire)

    @cached_property
    def parsed(self) -> WireRequest:
        """It as messages, tools and options. Raises NotThisFormat."""
        parsed: WireRequest = _READERS[self.wire].read_request(self.body.values)
        return parsed


def reply_limit(body: RequestBody) -> int | None:
    """Return the tokens that a request allows its reply; None if it sets no limit."""
    return first_number(body.values, "max_tokens", "max_completion_tokens", "max_output_tokens")


def worst_case(rate: Rate, body: RequestBody) -> float:
    """Return the most USD that a request can be billed: a token for each byte of its body, and all of its limit."""
    prompt = len(body.plain) + (_HIDDEN_PROMPT if body.values.get("tools") else 0)
    samples = first_number(body.values, "n") or 1
    return rate.worst_case(prompt, samples * (reply_limit(body) or rate.context or _LONGEST_OUTPUT), batch=False)
