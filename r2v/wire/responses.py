"""Responses, OpenAI's newer format: a conversation is a list of items, of which messages are one kind.

Each item (a message, a call, its output, a thought) is read as a separate `Message`. A message with several parts, from
another format, is written as several items.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from r2v.wire.chat import NotThisFormat, pieces, read_call, read_part
from r2v.wire.errors import WireError, read_error
from r2v.wire.exchange import Finish, TokenUsage, WireReply, WireRequest, usage_of
from r2v.wire.message import (
    Message,
    Part,
    RefusalPart,
    Role,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    ToolResult,
    ToolSpec,
    UnknownPart,
    mapping,
)
from r2v.wire.sse import Event, write_event

Json = dict[str, Any]
RESPONSES_PATH = "/v1/responses"

_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
_REQUEST = ("model", "input", "instructions", "tools")
_CALLS = {"function_call": False, "custom_tool_call": True}
"""Type of a call -> True for a custom tool."""
_OUTPUTS = {f"{name}_output": custom for name, custom in _CALLS.items()}
_REASONS: dict[str, Finish] = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "refusal"}


def read_request(body: Mapping[str, Any]) -> WireRequest:
    """Return the request in a body. Raises NotThisFormat."""
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise NotThisFormat("input: text or a list of items is required")
    system = body.get("instructions")
    return WireRequest(
        model=str(body.get("model") or ""),
        messages=tuple(read_item(item, f"input[{index}]") for index, item in enumerate(items)),
        system=Message(role="system", content=system) if isinstance(system, str) else None,
        tools=tuple(map(read_tool, body.get("tools") or ())),
        options={name: value for name, value in body.items() if name not in _REQUEST},
    )


def write_request(request: WireRequest) -> Json:
    """Return the body of a request."""
    body: Json = {"model": request.model, "input": [item for m in request.messages for item in write_items(m)]}
    if request.system is not None:
        body["instructions"] = request.system.text
    body |= request.options
    return body | ({"tools": [write_tool(tool) for tool in request.tools]} if request.tools else {})


def read_item(value: Any, where: str = "item") -> Message:
    """Return an item as a message. Raises NotThisFormat."""
    item = mapping(value)
    kind = item.get("type", "message")
    rest = {name: field for name, field in item.items() if name != "type"}
    if kind in _CALLS:
        kind = "custom" if _CALLS[kind] else "function"
        call = read_call({**item, "type": kind, "id": item.get("call_id")})
        extra = {name: field for name, field in call.extra.items() if name not in ("type", "call_id")}
        own_id = {"id": item["id"]} if "id" in item else {}
        return Message(role="assistant", content=(replace(call, extra=own_id | extra),))
    if kind in _OUTPUTS:
        result = ToolResult(
            call_id=str(rest.pop("call_id", "")),
            content=_output(rest.pop("output", ""), where),
            custom=_OUTPUTS[kind],
            extra=rest,
        )
        return Message(role="tool", content=(result,))
    if kind == "reasoning":
        words = [mapping(part).get("text") for part in [*(item.get("summary") or ()), *(item.get("content") or ())]]
        opaque = rest.pop("encrypted_content", None)
        extra_fields = (
            rest if opaque is not None or "encrypted_content" not in item else {**rest, "encrypted_content": None}
        )
        return Message(
            role="assistant",
            content=(ThinkingPart(text="\n".join(filter(None, words)), opaque=opaque, extra=extra_fields),),
        )
    role = item.get("role")
    if kind != "message":
        side: Role = role if role in _ROLES else "assistant" if str(kind).endswith("_call") else "user"
        return Message(role=side, content=(UnknownPart(value=dict(item)),))
    if role not in _ROLES:
        raise NotThisFormat(f"{where}: role {role!r:.40}; allowed: {', '.join(_ROLES)}")
    content = item.get("content")
    extra = {name: field for name, field in item.items() if name not in ("role", "content")}
    if isinstance(content, str):
        return Message(role=role, content=content, extra=extra)
    if not isinstance(content, list):
        raise NotThisFormat(f"{where}: content is {type(content).__name__}; allowed: text, a list of parts")
    return Message(role=role, content=tuple(_read_part(part, role, where) for part in content), extra=extra)


def _output(value: Any, where: str) -> str | tuple[TextPart | UnknownPart, ...]:
    if isinstance(value, list):
        parts = tuple(_read_part(part, "user", where) for part in value)
        return tuple(part for part in parts if isinstance(part, (TextPart, UnknownPart)))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def write_items(message: Message) -> list[Json]:
    """Return a message as items; each run of texts between calls and thoughts becomes one message."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content, **message.extra}]
    items, texts = list[Json](), list[Json]()

    def close() -> None:
        if texts:
            items.append({"role": message.role, "content": texts.copy(), **message.extra})
            texts.clear()

    for part in message.content:
        if isinstance(part, TextPart) or isinstance(part, UnknownPart) and message.extra.get("type") == "message":
            texts.append(_part(part, message.role))
        elif isinstance(part, RefusalPart):
            texts.append({"type": "refusal", "refusal": part.text} | _without(part.extra, "part"))
        else:
            close()
            items += _item(part)
    close()
    return items or [{"role": message.role, "content": [], **message.extra}]


def _item(part: Part) -> list[Json]:
    match part:
        case ToolCall():
            extra = dict(part.extra)
            kind, field = ("custom_tool_call", "input") if part.custom else ("function_call", "arguments")
            named = {"type": kind, "call_id": part.id, "name": part.name}
            return [named | {field: extra.pop("arguments", part.arguments)} | extra]
        case ToolResult():
            content = part.content
            output: Any = content if isinstance(content, str) else [_part(inner, "user") for inner in content]
            kind = "custom_tool_call_output" if part.custom else "function_call_output"
            return [{"type": kind, "call_id": part.call_id, "output": output} | part.extra]
        case ThinkingPart() if part.extra or part.opaque is not None:
            opaque = {} if part.opaque is None else {"encrypted_content": part.opaque}
            return [{"type": "reasoning", "summary": [], **opaque} | part.extra]
        case UnknownPart():
            return [dict(part.value)]
    return []  # a thought of another format, which the provider would refuse


def _without(fields: Json, name: str) -> Json:
    return {key: value for key, value in fields.items() if key != name}


def _part(part: Part, role: Role) -> Any:
    if isinstance(part, TextPart):
        kind = _kind(role)
        return part.text if part.extra.get("bare") else {"type": kind, "text": part.text} | part.extra
    return dict(part.value) if isinstance(part, UnknownPart) else {}


def _read_part(value: Any, role: Role, where: str) -> Part:
    part = read_part(value, where)
    if isinstance(part, TextPart) and part.extra.get("type") == _kind(role):
        return TextPart(text=part.text, extra=_without(part.extra, "type"))
    return part


def _kind(role: Role) -> str:
    return "output_text" if role == "assistant" else "input_text"


def read_tool(value: Any) -> Tool:
    """Return a tool of a request; one that is no function stays unread."""
    tool = mapping(value)
    if tool.get("type") != "function" or not tool.get("name"):
        return UnknownPart(value=dict(tool))
    own_fields = ("type", "name", "description", "parameters")
    return ToolSpec(
        name=str(tool["name"]),
        description=str(tool.get("description") or ""),
        parameters=dict(mapping(tool.get("parameters"))),
        extra={name: field for name, field in tool.items() if name not in own_fields or not field},
    )


def write_tool(tool: Tool) -> Json:
    """Return a tool as JSON."""
    if isinstance(tool, UnknownPart):
        return dict(tool.value)
    described = {"description": tool.description} if tool.description else {}
    shaped = {"parameters": tool.parameters} if tool.parameters else {}
    return {"type": "function", "name": tool.name, **described, **shaped} | tool.extra


def read_reply(body: Any) -> WireReply:
    """Return the reply in a body of status 200. Raises NotThisFormat if it is neither a reply nor an error."""
    fields = mapping(body)
    output, status = fields.get("output"), fields.get("status")
    error = read_error(None, {"error": fields["error"]}) if fields.get("error") else None
    if error is None and status in ("failed", "cancelled"):
        error = WireError(codes=("server_error",), message=f"the response is {status}")
    if not isinstance(output, list) and error is None:
        raise NotThisFormat(f"no output in it; it has {', '.join(map(str, fields)) or 'nothing'}"[:200])
    items = [read_item(_as_said(item), "output") for item in output or ()]
    parts = tuple(part for item in items for part in item.parts)
    reason = mapping(fields.get("incomplete_details")).get("reason")
    finish: Finish = _REASONS.get(str(reason), "length" if status == "incomplete" else "stop")
    if any(isinstance(part, RefusalPart) for part in parts):
        finish = "refusal"
    own_fields = ("id", "model", "output", "usage", "error")
    return WireReply(
        message=Message(role="assistant", content=parts),
        finish="error" if error is not None else finish,
        usage=usage_of(fields.get("usage")),
        id=str(fields.get("id") or ""),
        model=str(fields.get("model") or ""),
        error=error,
        extra={name: field for name, field in fields.items() if name not in own_fields},
    )


def _as_said(item: Any) -> Any:
    """Return an item of a reply; a message without a role is the assistant's."""
    return {"role": "assistant", **item} if mapping(item).get("type", "message") == "message" else item


def write_reply(reply: WireReply, created: int) -> Json:
    """Return the body of a reply. created: seconds since the epoch."""
    reasons = {"length": "max_output_tokens", "context": "max_output_tokens", "refusal": "content_filter"}
    refused = any(isinstance(part, RefusalPart) for part in reply.message.parts)
    reason = None if refused else reasons.get(reply.finish)
    return {
        "id": reply.id,
        "object": "response",
        "created_at": created,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": _output_items(reply),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    } | ({} if reply.usage is None else {"usage": write_usage(reply.usage)})


def _output_items(reply: WireReply) -> list[Json]:
    """Return the items of a reply, each with an id and a status, which clients of this format require."""
    items = []
    parts = (_summarized(part) if isinstance(part, ThinkingPart) else part for part in reply.message.parts)
    for number, item in enumerate(write_items(replace(reply.message, content=tuple(parts)))):
        kind = item.get("type", "message")
        if kind == "message":
            if not item["content"]:
                continue
            notes: Json = {"annotations": []}
            content = [part | notes if part["type"] == "output_text" else part for part in item["content"]]
            item = item | {"content": content}
        status = {} if kind == "reasoning" else {"status": "completed"}
        items.append({"type": kind, "id": f"{kind[:2]}_{reply.id}_{number}", **status} | item)
    return items


def _summarized(thought: ThinkingPart) -> ThinkingPart:
    """Return a thought with its text as a summary, the field of this format."""
    words = {"summary": [{"type": "summary_text", "text": thought.text}]} if thought.text else {}
    return replace(thought, extra=words | thought.extra)


def write_usage(usage: TokenUsage) -> Json:
    """Return a usage object."""
    prompt, output = usage.input or 0, usage.output or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.write_5m},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }


def read_stream(events: Iterable[Event]) -> WireReply:
    """Return the reply of a whole stream, which its last event holds; without that event, the completed items and an
    error."""
    done: list[Any] = []
    head: Json = {}
    for event in events:
        value = event.json or {}
        kind, response = value.get("type") or event.name, value.get("response")
        if kind == "response.output_item.done":
            done.append(value.get("item"))
        elif kind in ("response.completed", "response.incomplete", "response.failed") and isinstance(response, Mapping):
            return read_reply({**response, "output": response.get("output") or done})
        elif kind == "error":
            return read_reply({**head, "output": done, "error": value.get("error") or value})
        elif isinstance(response, Mapping):
            head = dict(response)
    return read_reply({**head, "output": done, "error": {"code": "server_error", "message": "the stream ended early"}})


def write_stream(reply: WireReply, created: int) -> Iterator[bytes]:
    """Yield the events of a reply."""
    whole = write_reply(reply, created)
    number = 0

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return write_event({"type": kind, "sequence_number": number - 1, **fields}, name=kind)

    opening = {**whole, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
    yield event("response.created", response=opening)
    yield event("response.in_progress", response=opening)
    for index, item in enumerate(whole["output"]):
        where = {"item_id": item["id"], "output_index": index}
        yield event("response.output_item.added", output_index=index, item=_opened(item))
        for content_index, part in enumerate(item.get("content") or () if item["type"] == "message" else ()):
            at = {**where, "content_index": content_index}
            stem = "response.output_text" if part["type"] == "output_text" else "response.refusal"
            field = "text" if part["type"] == "output_text" else "refusal"
            more: Json = {"logprobs": []} if field == "text" else {}
            yield event("response.content_part.added", **at, part={**part, field: ""})
            for piece in pieces(part[field]):
                yield event(f"{stem}.delta", **at, delta=piece, **more)
            yield event(f"{stem}.done", **at, **{field: part[field]}, **more)
            yield event("response.content_part.done", **at, part=part)
        if item["type"] in _CALLS:
            custom = _CALLS[item["type"]]
            field = "input" if custom else "arguments"
            stem = "custom_tool_call_input" if custom else "function_call_arguments"
            for piece in pieces(item[field]):
                yield event(f"response.{stem}.delta", **where, delta=piece)
            named = {} if custom else {"name": item["name"]}
            yield event(f"response.{stem}.done", **where, **named, **{field: item[field]})
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{whole['status']}", response=whole)


def _opened(item: Json) -> Json:
    """Return an item for its first event, without the fields that follow in pieces."""
    emptied: Json = {name: type(item[name])() for name in ("content", "arguments", "input") if name in item}
    return {**item, **emptied} | ({"status": "in_progress"} if "status" in item else {})
