"""Messages, Anthropic's format: content in blocks, tool results in the user's turn, a separate system prompt.

Consecutive messages of role `tool` (from another format, or R2V's own) are written as one of the user, because all
results of a turn have to be in the message that follows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from r2v.wire.chat import NotThisFormat, pieces
from r2v.wire.errors import read_error
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
    decoded,
    mapping,
)
from r2v.wire.sse import Event, write_event

Json = dict[str, Any]
MESSAGES_PATH = "/v1/messages"

_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
_REQUEST = ("model", "messages", "system", "tools")
_FINISH: dict[str, Finish] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "context",
    "refusal": "refusal",
}


def read_request(body: Mapping[str, Any]) -> WireRequest:
    """Return the request in a body. Raises NotThisFormat."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise NotThisFormat("messages: a list of messages is required")
    system = body.get("system")
    return WireRequest(
        model=str(body.get("model") or ""),
        messages=tuple(read_message(message, f"messages[{index}]") for index, message in enumerate(messages)),
        system=None if system is None else Message(role="system", content=_content(system, "system")),
        tools=tuple(map(read_tool, body.get("tools") or ())),
        options={name: value for name, value in body.items() if name not in _REQUEST},
    )


def write_request(request: WireRequest) -> Json:
    """Return the body of a request."""
    body: Json = {"model": request.model, "messages": write_messages(request.messages)}
    if request.system is not None:
        body["system"] = _written(request.system.content)
    body |= request.options
    return body | ({"tools": [write_tool(tool) for tool in request.tools]} if request.tools else {})


def read_message(value: Any, where: str = "message") -> Message:
    """Return a message. Raises NotThisFormat."""
    fields = mapping(value)
    role = fields.get("role")
    if role not in _ROLES:
        raise NotThisFormat(f"{where}: role {role!r:.40}; allowed: user, assistant, system")
    extra = {name: item for name, item in fields.items() if name not in ("role", "content")}
    return Message(role=role, content=_content(fields.get("content"), f"{where}: content"), extra=extra)


def _content(content: Any, where: str) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NotThisFormat(f"{where} is {type(content).__name__}; allowed: text, a list of blocks")
    return tuple(read_block(block, where) for block in content)


def read_block(value: Any, where: str = "block") -> Part:
    """Return a block of content as a part. Raises NotThisFormat."""
    if not isinstance(value, Mapping):
        raise NotThisFormat(f"{where} holds {type(value).__name__}; allowed: objects")
    kind = value.get("type")
    rest = {name: item for name, item in value.items() if name != "type"}
    if kind == "text" and isinstance(value.get("text"), str):
        return TextPart(text=rest.pop("text"), extra=rest)
    if kind == "tool_use" and isinstance(value.get("name"), str):
        call_id, given = rest.pop("id", ""), rest.pop("input", {})
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        more = {"input": given} if isinstance(given, str) else {}
        return ToolCall(name=rest.pop("name"), arguments=arguments, id=str(call_id or ""), extra=rest | more)
    if kind == "tool_result":
        content = rest.pop("content", None)
        held: Json = {"content": content} if content is None or isinstance(content, Mapping) else {}
        if "content" not in value:
            held = {"content": "absent"}
        inner = content if isinstance(content, (str, list)) else "" if content is None else [content]
        parts = inner if isinstance(inner, str) else tuple(map(_result_block, inner))
        failed = rest.pop("is_error", None)
        more = {} if failed is True or "is_error" not in value else {"is_error": failed}
        return ToolResult(
            call_id=str(rest.pop("tool_use_id", "")), content=parts, is_error=failed is True, extra=rest | held | more
        )
    if kind == "thinking":
        return ThinkingPart(text=str(rest.pop("thinking", "")), opaque=rest.pop("signature", None), extra=rest)
    if kind == "redacted_thinking":
        return ThinkingPart(opaque=rest.pop("data", None), extra=rest | {"type": kind})
    return UnknownPart(value=dict(value))


def _result_block(value: Any) -> TextPart | UnknownPart:
    part = read_block(value, "tool_result")
    return part if isinstance(part, TextPart) else UnknownPart(value=dict(value))


def write_messages(messages: Sequence[Message]) -> list[Json]:
    """Return messages in this format; consecutive tool results become one message of the user."""
    written: list[Json] = []
    after_result = False
    for message in messages:
        if message.role == "tool":
            blocks = [write_block(part) for part in message.parts]
            if after_result:
                written[-1]["content"] += blocks
            else:
                written.append({"role": "user", "content": blocks})
        else:
            written.append({"role": message.role, "content": _written(message.content), **message.extra})
        after_result = message.role == "tool"
    return written


def _written(content: str | tuple[Part, ...]) -> Any:
    if isinstance(content, str):
        return content
    # the provider refuses thoughts without a signature
    accepted = (part for part in content if not isinstance(part, ThinkingPart) or part.opaque is not None or part.extra)
    return [write_block(part) for part in accepted]


def write_block(part: Part) -> Json:
    """Return a part as a block of content."""
    match part:
        case TextPart():
            return {"type": "text", "text": part.text} | part.extra
        case RefusalPart():
            return {"type": "text", "text": part.text}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.object} | part.extra
        case ToolResult():
            content: Any = part.content
            content = content if isinstance(content, str) else [write_block(inner) for inner in content]
            failed = {"is_error": True} if part.is_error else {}
            block = {"type": "tool_result", "tool_use_id": part.call_id, "content": content} | failed | part.extra
            if part.extra.get("content") == "absent":
                del block["content"]
            return block
        case ThinkingPart() if part.extra.get("type") == "redacted_thinking":
            return {"type": "redacted_thinking", "data": part.opaque} | part.extra
        case ThinkingPart():
            signed = {} if part.opaque is None else {"signature": part.opaque}
            return {"type": "thinking", "thinking": part.text} | signed | part.extra
    return dict(part.value)


def read_tool(value: Any) -> Tool:
    """Return a tool of a request; one that is no function (a server tool) stays unread."""
    tool = mapping(value)
    function = tool.get("type") in (None, "custom") and isinstance(tool.get("name"), str)
    if not function or not isinstance(tool.get("input_schema"), Mapping):
        return UnknownPart(value=dict(tool))
    own_fields = ("name", "description", "input_schema")
    return ToolSpec(
        name=str(tool["name"]),
        description=str(tool.get("description") or ""),
        parameters=dict(tool["input_schema"]),
        extra={name: item for name, item in tool.items() if name not in own_fields or not item},
    )


def write_tool(tool: Tool) -> Json:
    """Return a tool as JSON."""
    if isinstance(tool, UnknownPart):
        return dict(tool.value)
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "input_schema": tool.parameters} | tool.extra


def read_reply(body: Any) -> WireReply:
    """Return the reply in a body of status 200. Raises NotThisFormat if it is neither a reply nor an error."""
    fields = mapping(body)
    content = fields.get("content")
    error = read_error(None, fields) if fields.get("error") else None
    if not isinstance(content, (list, str)) and error is None:
        raise NotThisFormat(f"no content in it; it has {', '.join(map(str, fields)) or 'nothing'}"[:200])
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    reason = fields.get("stop_reason")
    own_fields = ("id", "type", "role", "model", "content", "usage", "error")
    return WireReply(
        message=Message(role="assistant", content=tuple(read_block(block, "content") for block in blocks)),
        finish="error" if error is not None else _FINISH.get(str(reason), "stop"),
        usage=usage_of(fields.get("usage")),
        id=str(fields.get("id") or ""),
        model=str(fields.get("model") or ""),
        error=error,
        extra={name: item for name, item in fields.items() if name not in own_fields},
    )


def _stop_reason(reply: WireReply) -> str:
    """Return the stop_reason of a reply."""
    if reply.finish == "stop":
        return "tool_use" if reply.message.calls else "end_turn"
    return next((word for word, finish in _FINISH.items() if finish == reply.finish), "end_turn")


def write_reply(reply: WireReply) -> Json:
    """Return the body of a reply."""
    parts = [part for part in reply.message.parts if not isinstance(part, RefusalPart)]
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [write_block(part) for part in parts],
        "stop_reason": _stop_reason(reply),
        "stop_sequence": None,
    } | ({} if reply.usage is None else {"usage": write_usage(reply.usage)})


def write_usage(usage: TokenUsage) -> Json:
    """Return a usage object."""
    written = usage.write_5m + usage.write_1h
    return {
        "input_tokens": max(0, (usage.input or 0) - usage.cached - written),
        "output_tokens": usage.output or 0,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.write_5m,
            "ephemeral_1h_input_tokens": usage.write_1h,
        },
    }


def read_stream(events: Iterable[Event]) -> WireReply:
    """Return the reply of a whole stream, as `read_reply` does; a stream that ends early is an error."""
    message: Json = {"content": [], "usage": {}}
    blocks: dict[int, Json] = {}
    ended = False
    for event in events:
        value = event.json or {}
        kind = value.get("type") or event.name
        if kind == "message_start":
            message |= {name: item for name, item in mapping(value.get("message")).items() if name != "content"}
        elif kind == "content_block_start":
            blocks[value.get("index", len(blocks))] = dict(mapping(value.get("content_block")))
        elif kind == "content_block_delta":
            _add_delta(blocks.setdefault(value.get("index", 0), {"type": "text"}), mapping(value.get("delta")))
        elif kind == "message_delta":
            message |= mapping(value.get("delta"))
            message["usage"] = {**mapping(message.get("usage")), **mapping(value.get("usage"))}
            ended = True
        elif kind == "message_stop":
            ended = True
        elif kind == "error":
            message["error"] = value.get("error") or {"message": "an error"}
    if not ended and "error" not in message:
        message["error"] = {"type": "api_error", "message": "the stream ended before its end"}
    message["content"] = [_closed(blocks[index]) for index in sorted(blocks)]
    return read_reply(message)


_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def _add_delta(block: Json, delta: Mapping[str, Any]) -> None:
    kind = str(delta.get("type"))
    if kind == "input_json_delta":
        block["json"] = block.get("json", "") + str(delta.get("partial_json") or "")
    elif (name := _DELTAS.get(kind)) is not None:
        block[name] = (block.get(name) or "") + str(delta.get(name) or "")
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]


def _closed(block: Json) -> Json:
    """Return a block whose pieces are complete, with its input parsed."""
    text = block.pop("json", "")
    return {**block, "input": decoded(text)} if text else block


def write_stream(reply: WireReply) -> Iterator[bytes]:
    """Yield the events of a reply."""
    whole = write_reply(reply)
    usage = whole.get("usage") or write_usage(TokenUsage())
    opening = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    yield write_event({"type": "message_start", "message": opening}, name="message_start")
    for index, block in enumerate(whole["content"]):
        deltas = list(_deltas(block))
        emptied = {name: "" for name in _DELTAS.values() if name in block}
        if block["type"] == "tool_use":
            emptied["input"] = {}  # type: ignore[assignment]
        start = {"type": "content_block_start", "index": index, "content_block": {**block, **emptied}}
        yield write_event(start, name="content_block_start")
        for delta in deltas:
            yield write_event(
                {"type": "content_block_delta", "index": index, "delta": delta}, name="content_block_delta"
            )
        yield write_event({"type": "content_block_stop", "index": index}, name="content_block_stop")
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield write_event({"type": "message_delta", "delta": ending, "usage": usage}, name="message_delta")
    yield write_event({"type": "message_stop"}, name="message_stop")


def _deltas(block: Json) -> Iterator[Json]:
    if block["type"] == "tool_use":
        for piece in pieces(json.dumps(block["input"], ensure_ascii=False)):
            yield {"type": "input_json_delta", "partial_json": piece}
    for kind, name in _DELTAS.items():
        if isinstance(block.get(name), str):
            whole = [block[name]] if name == "signature" else pieces(block[name])
            for piece in whole:
                yield {"type": kind, name: piece}
