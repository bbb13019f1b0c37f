"""LiteLLM request logs: spend logs of the proxy, payloads of its loggers, or a request with its response.

    {"request_id": ..., "model": ..., "messages": [...], "response": {...}, "proxy_server_request": {...}, "spend": .01}

Each record is one request and repeats the earlier replies, which are context here, since each has its own record.
`sessions_of` joins the requests of a session, which the logs do not identify.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from r2v.data.interchange.content import as_read, joined, normal, read_messages
from r2v.data.interchange.conversation import Conversation
from r2v.data.interchange.fields import BadRecord, amount, parsed, require, tokens_of
from r2v.data.interchange.messages import about_of, system_of
from r2v.data.interchange.responses import is_items, read_items
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import WireReply
from r2v.wire.message import Message, mapping

_READERS: dict[str, Callable[[Any], WireReply]] = {
    "choices": chat.read_reply,
    "output": responses.read_reply,
    "content": anthropic.read_reply,
}
"""Field unique to a format's replies -> reader."""


def from_litellm(record: Any) -> Conversation:
    """Return a record as a conversation. Raise BadRecord for other records."""
    about = require(record, dict, "the record")
    request = _request(about)
    listed = parsed(about.get("messages"), "messages")
    reply = _reply(parsed(about.get("response"), "response"))
    offered = mapping(about.get("model_parameters")).get("tools") or request.get("tools")
    talk = exchange(request, reply, {**about, "tools": about.get("tools") or offered}, listed)
    spend, last = about.get("spend", about.get("response_cost")), len(talk.messages) - 1
    usd = tuple(amount(spend) if index == last and spend is not None else None for index in talk.places)
    return replace(talk, cost=amount(spend), usd=usd, copied=frozenset(range(last)))


def sessions_of(requests: Iterable[tuple[str, Conversation]]) -> list[tuple[str, Conversation]]:
    """Return (location, conversation) of requests joined into sessions: a request continues the one whose messages,
    reply included, are the longest prefix of its own."""
    sessions: dict[tuple[Any, ...], tuple[str, Conversation]] = {}
    for location, talk in sorted(requests, key=lambda request: len(request[1].messages)):  # logs may be newest first
        # Clients put dates and marks into system prompts, which then differ between requests of a session.
        texts = [(message.role, "" if message.role == "system" else message.text) for message in talk.messages]
        prefixes = [tuple(texts[: end + 1]) for end in range(len(texts) - 1) if texts[end][0] == "assistant"]
        before = next((sessions.pop(key) for key in reversed(prefixes) if key in sessions), None)
        whole = tuple(texts) if tuple(texts) not in sessions else (location,)  # equal texts are another session
        sessions[whole] = (location, talk) if before is None else (before[0], _joined(before[1], talk))
    return list(sessions.values())


def _joined(before: Conversation, talk: Conversation) -> Conversation:
    """Return the session of a request and the earlier ones, with the cost of each turn."""
    own = set(range(len(before.messages))) - before.copied
    return replace(
        talk,
        copied=talk.copied - own,
        cost=before.cost + talk.cost,
        usd=before.usd + talk.usd[len(before.usd) :],
        tokens=before.tokens + talk.tokens,
        outcome=before.outcome if talk.outcome is None else talk.outcome,
    )


def exchange(request: Mapping[str, Any], reply: WireReply, about: dict[str, Any], messages: Any = None) -> Conversation:
    """Return a request of any wire format with its reply as a conversation. `messages`: replacement of the request's.
    Raise BadRecord for other values."""
    replied = normal(joined([("response", reply.message)]))
    fields = about_of(about)
    return Conversation(
        messages=(*asked(request, messages), *replied),
        tokens=tokens_of(reply.usage),
        **fields | {"model": fields["model"] or reply.model or None},
    )


def asked(request: Mapping[str, Any], messages: Any = None) -> tuple[Message, ...]:
    """Return the messages of a request of any wire format, system prompt first. Raise BadRecord without messages."""
    listed = messages or request.get("messages") or request.get("input")
    if isinstance(listed, str):
        listed = [{"role": "user", "content": listed}]
    if not listed or not isinstance(listed, list):
        raise BadRecord("no messages; a proxy logs them only with store_prompts_in_spend_logs")
    before = (
        read_items((f"item {number}", item) for number, item in enumerate(listed))
        if is_items(listed)
        else read_messages(listed)
    )
    return (*system_of(request.get("system") or request.get("instructions")), *before)


def _request(about: dict[str, Any]) -> Mapping[str, Any]:
    """Return the body of the request as logged by the caller or the proxy."""
    for name in ("request", "proxy_server_request"):
        if body := mapping(parsed(about.get(name), name)):
            return mapping(body.get("body")) or body
    return {}


def _reply(response: Any) -> WireReply:
    fields = require(response, dict, "response")
    reader = next((reader for name, reader in _READERS.items() if name in fields), None)
    if reader is None:
        raise BadRecord(f"response: it has {', '.join(fields) or 'nothing'}; one of {', '.join(_READERS)} is asked for")
    reply = as_read(lambda value, _: reader(value), fields, "response")
    if reply.error is not None:
        raise BadRecord(f"response: the request failed ({reply.error.message:.120})")
    return reply
