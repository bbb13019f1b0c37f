"""A client's request, parsed, and its worst-case cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from r2v.llm.providers.prices import Rate
from r2v.serve.sessions import prefix
from r2v.serve.transport.body import RequestBody
from r2v.serve.transport.headers import Headers
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import WireRequest, first_number, reply_limit
from r2v.wire.stream_facts import WireName

_READERS: dict[WireName, Any] = {"chat": chat, "responses": responses, "messages": anthropic}
_LONGEST_OUTPUT = 131_072
"""Tokens reserved for a reply without a limit if the model's context length is unknown."""
_HIDDEN_PROMPT = 1024
"""Most tokens that providers add to a prompt with tools."""


@dataclass(frozen=True, kw_only=True)
class ClientRequest:
    """A client's request."""

    wire: WireName
    query: str
    headers: Headers = field(repr=False)
    body: RequestBody
    key_name: str
    """Name of the client's key."""

    @cached_property
    def conversation(self) -> str:
        """Digest of the whole conversation."""
        return prefix(self.body.values, self.wire)

    @cached_property
    def parsed(self) -> WireRequest:
        """Messages, tools and options of the body. Raises NotThisFormat."""
        parsed: WireRequest = _READERS[self.wire].read_request(self.body.values)
        return parsed


def worst_case(rate: Rate, body: RequestBody) -> float:
    """Return the worst-case USD of a request: a token for each byte of its body, and replies of the greatest length."""
    prompt = len(body.plain) + (_HIDDEN_PROMPT if body.values.get("tools") else 0)
    samples = first_number(body.values, "n") or 1
    return rate.worst_case(prompt, samples * (reply_limit(body.values) or rate.context or _LONGEST_OUTPUT), batch=False)
