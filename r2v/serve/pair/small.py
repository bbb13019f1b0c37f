"""Small model of a served pair: it proposes a turn, which is played or discarded.

    proposal = await small.propose(request, view)
    kind, body = rendered(request, proposal.wire_reply)      # in the client's own format

`LocalSmall` has weights in this process and reads R2V's rendering of the steps, as in training. `APISmall` is another
endpoint and reads the client's conversation without the LLM's thoughts, which only their author accepts.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from r2v.data.action import parse_action
from r2v.data.interchange.conversation import Turn
from r2v.data.interchange.litellm import asked
from r2v.llm.providers.bodies import chat_body, message_body, response_body
from r2v.llm.providers.prices import Rate
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.rollout.actors import PricedModel, StepView
from r2v.rollout.bill import StepBill
from r2v.serve.accounts.books import Books
from r2v.serve.pair.state import CALL_ID
from r2v.serve.request import ClientRequest, worst_case
from r2v.serve.transport.body import RequestBody
from r2v.serve.transport.endpoints import PATHS, Endpoint
from r2v.serve.transport.upstream import BrokenOff, NotSent, Upstream
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import TokenCounts, TokenUsage, WireReply, reply_limit
from r2v.wire.message import Message, Part, TextPart, ToolCall

_LONGEST_REPLY = 8192
"""Tokens of a turn, unless the client allows fewer; a turn cut off there goes to the LLM instead."""


class SmallFailed(Exception):
    """The small model failed to answer, and the LLM answers instead. The reason is logged."""


@dataclass(frozen=True, kw_only=True)
class SmallProposal:
    """A turn of the small model. reply: for the router; wire_reply: for the client."""

    reply: Reply
    wire_reply: WireReply
    bill: StepBill = field(default_factory=StepBill)
    tokens: TokenCounts
    usd: float | None = 0.0
    """Billed by its provider; None if unknown."""


class Small(Protocol):
    """The small model."""

    async def propose(self, request: ClientRequest, view: StepView) -> SmallProposal:
        """Propose the next turn. Raises SmallFailed."""
        ...


@dataclass(frozen=True)
class LocalSmall:
    """Weights in this process."""

    model: PricedModel

    async def propose(self, request: ClientRequest, view: StepView) -> SmallProposal:
        reply = await self.model.ask(view)
        text = reply.samples[0].text
        action = parse_action(text)
        part: Part = TextPart(text=text)
        if request.body.values.get("tools") and action.action_type:
            arguments = json.dumps(action.arguments, ensure_ascii=False)
            part = ToolCall(name=action.action_type, arguments=arguments, id=new_call_id())
        usage = TokenUsage(input=reply.usage.tokens_in, output=reply.usage.tokens_out)
        wire_reply = WireReply(message=Message(role="assistant", content=(part,)), usage=usage, id=new_call_id())
        return SmallProposal(
            reply=reply, wire_reply=wire_reply, bill=self.model.bill(view, reply), tokens=usage.counts(0, 0)
        )


@dataclass(frozen=True)
class APISmall:
    """A model behind an endpoint, asked once and without a stream."""

    endpoint: Endpoint
    rate: Rate
    """Price, and shape of its requests."""
    upstream: Upstream
    books: Books

    async def propose(self, request: ClientRequest, view: StepView) -> SmallProposal:
        endpoint, rate = self.endpoint, self.rate
        wire, path, write = _form(endpoint, rate)
        written = write(rate, _question(request, view, endpoint))
        body = json.dumps(written, ensure_ascii=False).encode(errors="replace")
        headers = [("content-type", "application/json"), ("accept-encoding", "identity"), *endpoint.key_headers.items()]
        if endpoint.provider == "anthropic":
            headers.append(("anthropic-version", "2023-06-01"))
        at_most = worst_case(rate, RequestBody.of(written))
        entry = await self.books.reserve(at_most, key=request.key_name, session=view.task_id)
        try:
            async with self.upstream.post(endpoint.url(path), headers, body) as response:
                content = b"".join([piece async for piece in self.upstream.pieces(response)])
        except NotSent as error:  # no connection, so nothing is billed
            await self.books.settle(entry, 0.0)
            raise SmallFailed(str(error)) from None
        except BrokenOff as error:  # the request may have arrived, and the provider may bill it
            await self.books.lost(entry, str(error))
            raise SmallFailed(str(error)) from None
        if response.status >= 400:  # providers bill no refused request
            await self.books.settle(entry, 0.0)
            raise SmallFailed(f"status {response.status}")
        try:
            wire_reply: WireReply = wire.read_reply(json.loads(content))
        except (chat.NotThisFormat, ValueError, TypeError, LookupError, RecursionError) as error:
            await self.books.lost(entry, "its reply cannot be read")
            raise SmallFailed(f"its reply cannot be read ({error!s:.60})") from None
        counts, usd = TokenCounts(), None
        if wire_reply.usage is not None and wire_reply.usage.whole:
            counts = wire_reply.usage.counts(0, 0)
            usd = rate.usd(counts, batch=False)
            await self.books.settle(entry, usd)
        else:
            await self.books.lost(entry, "the reply told no usage")
        if wire_reply.finish != "stop" or not (wire_reply.message.calls or wire_reply.message.text.strip()):
            raise SmallFailed(f"its reply ended by {wire_reply.finish}")
        text = Turn(said=wire_reply.message).action.raw_text
        usage = Usage(tokens_in=counts.input, tokens_out=counts.output, cost_usd=rate.listed(counts))
        reply = Reply(samples=(Sample(text=text, message=wire_reply.message),), usage=usage, model=endpoint.model)
        return SmallProposal(reply=reply, wire_reply=_plain(wire_reply), tokens=counts, usd=usd)


def _form(endpoint: Endpoint, rate: Rate) -> tuple[Any, str, Callable[[Rate, Request], dict[str, Any]]]:
    """Return the endpoint's wire format: its module, its path, and the writer of its bodies."""
    if endpoint.provider == "anthropic":
        return anthropic, PATHS["messages"], message_body
    if rate.shape.responses:
        return responses, PATHS["responses"], response_body
    return chat, PATHS["chat"], chat_body


def _question(request: ClientRequest, view: StepView, endpoint: Endpoint) -> Request:
    """Return the request to the small model: the client's conversation and tools."""
    messages = tuple(message.plain for message in asked(request.body.values))
    tools = tuple(replace(tool, extra={}) for tool in request.parsed.functions)
    return Request(
        messages=messages,
        key=view.key("slm"),
        tools=tools,
        temperature=endpoint.teacher.temperature,
        max_tokens=min(reply_limit(request.body.values) or _LONGEST_REPLY, _LONGEST_REPLY),
        own_rules=True,
    )


def _plain(reply: WireReply) -> WireReply:
    """Return a reply with only its texts and calls, the calls with ids of R2V."""
    parts: list[Part] = []
    for part in reply.message.parts:
        if isinstance(part, ToolCall):
            parts.append(ToolCall(name=part.name, arguments=part.arguments or "{}", id=new_call_id()))
        elif isinstance(part, TextPart) and part.text:
            parts.append(TextPart(text=part.text))
    return replace(reply, message=Message(role="assistant", content=tuple(parts)), id=new_call_id(), extra={})


def new_call_id() -> str:
    """Return a new id with the prefix by which the small model's turns are recognised."""
    return f"{CALL_ID}{secrets.token_hex(12)}"


def rendered(request: ClientRequest, wire_reply: WireReply) -> tuple[str, bytes]:
    """Return the content type and the body of a reply in the client's format. It names the requested model."""
    reply, created, streams = replace(wire_reply, model=request.body.model), int(time.time()), request.body.streams
    written: Any
    if request.wire == "messages":
        written = anthropic.write_stream(reply) if streams else anthropic.write_reply(reply)
    elif request.wire == "responses":
        written = (responses.write_stream if streams else responses.write_reply)(reply, created)
    elif streams:
        written = chat.write_stream(reply, created, with_usage=request.body.asks_usage)
    else:
        written = chat.write_reply(reply, created)
    if streams:
        return "text/event-stream", b"".join(written)
    return "application/json", json.dumps(written, ensure_ascii=False).encode(errors="replace")
