"""Chat Completions, the format of OpenAI's older endpoint and of most other servers.

    body = write_request(request)                   # POST /v1/chat/completions
    reply = read_reply(answer)
    reply = read_stream(read_events(chunks))

Variants of other servers are read too: `reasoning_content` and `reasoning` (thoughts), `function_call` (the oldest tool
call), arguments as an object, content in parts, an `error` with or without choices, Ollama's message without choices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

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
from r2v.wire.sse import DONE, Event, write_event

Json = dict[str, Any]
CHAT_PATH = "/v1/chat/completions"
CALLS, OLDEST_CALL = "tool_calls", "function_call"
"""Fields of an assistant's message with its calls, or, in the oldest form, its single call."""

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_REQUEST = ("model", "messages", "tools")
_FINISH: dict[str, Finish] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
    "sensitive": "refusal",
    "safety": "refusal",
    "recitation": "refusal",
    "blocklist": "refusal",
    "prohibited_content": "refusal",
    "spii": "refusal",
    "error": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
}


class NotThisFormat(ValueError):
    """The value is no request, message or reply of the format; the text gives the reason."""


def read_request(body: Mapping[str, Any]) -> WireRequest:
    """Return the request in a body. Raises NotThisFormat."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise NotThisFormat("messages: a list of messages is required")
    return WireRequest(
        model=str(body.get("model") or ""),
        messages=tuple(read_message(message, f"messages[{index}]") for index, message in enumerate(messages)),
        tools=tuple(map(read_tool, body.get("tools") or ())),
        options={name: value for name, value in body.items() if name not in _REQUEST},
    )


def write_request(request: WireRequest) -> Json:
    """Return the body of a request."""
    body: Json = {"model": request.model, "messages": [write_message(message) for message in request.conversation]}
    body |= request.options
    return body | ({"tools": [write_tool(tool) for tool in request.tools]} if request.tools else {})


def read_message(value: Any, where: str = "message") -> Message:
    """Return a message. Raises NotThisFormat."""
    fields = mapping(value)
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise NotThisFormat(f"{where}: role {fields.get('role')!r:.40}; allowed: {', '.join(_ROLES)}")
    content = read_content(fields.get("content"), f"{where}: content")
    extra = {name: item for name, item in fields.items() if name not in ("role", "content")}
    if fields["role"] == "function":
        extra["role"] = "function"
    if role == "tool":
        call_id = extra.get("tool_call_id")
        named = isinstance(call_id, str) and bool(call_id)
        result = ToolResult(call_id=extra.pop("tool_call_id") if named else "", content=_plain(content))
        return Message(role=role, content=(result,), extra=extra)
    parts = list(_assistant_parts(extra)) if role == "assistant" else []
    if not parts:
        if content is None or role == "assistant" and not isinstance(content, str):
            extra["content"] = None if content is None else "parts"
        return Message(role=role, content=content or "", extra=extra)
    return Message(role=role, content=_around(content, parts, extra), extra=extra)


def _around(content: str | tuple[Part, ...] | None, parts: list[Part], extra: Json) -> tuple[Part, ...]:
    """Return thoughts, text and calls in this order. `extra` records the form of the content, for the round trip."""
    if not content:
        extra["content"] = content
    elif not isinstance(content, str):
        extra["content"] = "parts"
    texts = (TextPart(text=content),) if isinstance(content, str) and content else content or ()
    thoughts = [part for part in parts if isinstance(part, ThinkingPart)]
    return (*thoughts, *texts, *(part for part in parts if not isinstance(part, ThinkingPart)))


def _plain(content: str | tuple[Part, ...] | None) -> str | tuple[TextPart | UnknownPart, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    return tuple(part for part in content if isinstance(part, (TextPart, UnknownPart)))


def _assistant_parts(extra: Json) -> Iterator[Part]:
    """Yield thoughts, calls and refusal of an assistant's message, and remove their fields from `extra`."""
    for name in _THOUGHTS:
        if isinstance(extra.get(name), str) and extra[name]:
            yield ThinkingPart(text=extra.pop(name), extra={"field": name})
            break
    calls = extra.get("tool_calls")
    if isinstance(calls, list) and calls:
        del extra["tool_calls"]
        for call in calls:
            yield read_call(call)
    elif isinstance(extra.get("function_call"), Mapping):
        yield read_call({"function": extra.pop("function_call"), "oldest": True})
    if isinstance(extra.get("refusal"), str) and extra["refusal"]:
        yield RefusalPart(text=extra.pop("refusal"))


def read_call(value: Any) -> ToolCall:
    """Return a call of a function or a custom tool. A call without a name is kept, and fails when it is executed."""
    call = mapping(value)
    custom = call.get("type") == "custom"
    inner = mapping(call.get("custom" if custom else "function")) or call
    name, arguments = inner.get("name"), inner.get("input" if custom else "arguments")
    own = ("name", "input" if custom else "arguments")
    extra: Json = {key: item for key, item in call.items() if key not in ("id", "function", "custom", *own)}
    more = {key: item for key, item in inner.items() if key not in own}
    if more and inner is not call:
        extra["function"] = more
    if not isinstance(arguments, str):
        extra["arguments"] = arguments
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    call_id = call.get("id")
    return ToolCall(
        name=name if isinstance(name, str) else "",
        arguments=arguments,
        id=call_id if isinstance(call_id, str) else "",
        custom=custom,
        extra=extra,
    )


def read_content(content: Any, where: str = "content") -> str | tuple[Part, ...] | None:
    """Return content as text or parts. Raises NotThisFormat."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NotThisFormat(f"{where} is {type(content).__name__}; allowed: text, a list of parts")
    return tuple(read_part(part, where) for part in content)


def read_part(value: Any, where: str = "part") -> Part:
    """Return a part of a message. Raises NotThisFormat."""
    if isinstance(value, str):
        return TextPart(text=value, extra={"bare": True})
    if not isinstance(value, Mapping):
        raise NotThisFormat(f"{where} holds {type(value).__name__}; allowed: text, objects")
    rest = {name: item for name, item in value.items() if name not in ("type", "text")}
    if value.get("type", "text") in ("text", "input_text", "output_text") and isinstance(value.get("text"), str):
        kind = {} if value.get("type") == "text" else {"type": value.get("type")}
        return TextPart(text=value["text"], extra=rest | kind)
    if value.get("type") == "refusal" and isinstance(value.get("refusal"), str):
        return RefusalPart(
            text=value["refusal"], extra={name: rest[name] for name in rest if name != "refusal"} | {"part": 1}
        )
    if value.get("type") in ("thinking", "reasoning"):  # Mistral and Databricks nest parts in it
        inner = value.get("thinking", value.get("summary"))
        words = inner if isinstance(inner, str) else "".join(str(mapping(part).get("text", "")) for part in inner or ())
        return ThinkingPart(text=words, extra={"value": value})
    return UnknownPart(value=dict(value))


def write_message(message: Message) -> Json:
    """Return a message as JSON."""
    extra = dict(message.extra)
    role = extra.pop("role", message.role)
    if message.role == "tool":
        result = next((part for part in message.parts if isinstance(part, ToolResult)), ToolResult(call_id=""))
        content: Any = result.content if isinstance(result.content, str) else [write_part(p) for p in result.content]
        named = {"tool_call_id": result.call_id} if result.call_id else {}
        return {"role": role, "content": content, **named, **extra}
    if isinstance(message.content, str):
        return {"role": role, "content": message.content, **extra}
    written: Json = {"role": role, "content": _written_content(message, extra)}
    for part in message.content:
        if isinstance(part, ThinkingPart) and "value" not in part.extra and part.text:
            written[str(part.extra.get("field", _THOUGHTS[0]))] = part.text
        elif isinstance(part, RefusalPart) and "part" not in part.extra:
            written["refusal"] = part.text
    calls = [part for part in message.content if isinstance(part, ToolCall)]
    if calls and calls[0].extra.get("oldest"):
        written["function_call"] = write_call(calls[0])["function"]
    elif calls:
        written["tool_calls"] = [write_call(call) for call in calls]
    return written | extra


def template_message(message: Message) -> Json:
    """Return a message for chat templates: the content is text, and arguments of calls are objects."""
    written = write_message(message)
    for call in written.get("tool_calls") or ():
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    words = replace(message, content=tuple(part for part in message.parts if not isinstance(part, ToolCall)))
    return {**written, "content": words.text}


def _written_content(message: Message, extra: Json) -> Any:
    """Return the content in its original form; by default as text, or as parts if they are more than text."""
    parts = message.parts
    inside = [
        part for part in parts if isinstance(part, (TextPart, UnknownPart)) or {"part", "value"} & part.extra.keys()
    ]
    original = extra.pop("content", "")
    if not inside:
        return original
    if (
        original == "parts"
        or message.role != "assistant"
        or any(not isinstance(part, TextPart) or part.extra for part in inside)
    ):
        return [write_part(part) for part in inside]
    return "".join(part.text for part in inside if isinstance(part, TextPart))


def write_part(part: Part) -> Any:
    """Return a part as JSON."""
    if isinstance(part, TextPart):
        return part.text if part.extra.get("bare") else {"type": "text", "text": part.text} | part.extra
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.text} | {n: v for n, v in part.extra.items() if n != "part"}
    if isinstance(part, ThinkingPart):
        return part.extra["value"]
    return dict(part.value) if isinstance(part, UnknownPart) else {"type": "text", "text": ""}


def write_call(call: ToolCall) -> Json:
    """Return a tool call as JSON."""
    extra = dict(call.extra)
    key = "custom" if call.custom else "function"
    arguments = extra.pop("arguments", call.arguments)
    inner = {"name": call.name, "input" if call.custom else "arguments": arguments} | extra.pop("function", {})
    extra.pop("oldest", None)
    return {"id": call.id, "type": key, key: inner} | extra


def read_tool(value: Any) -> Tool:
    """Return a tool of a request; one that is no function stays unread."""
    tool = mapping(value)
    inner = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(inner, Mapping) or not inner.get("name"):
        return UnknownPart(value=dict(tool))
    own_fields = ("name", "description", "parameters")
    extra: Json = {key: item for key, item in tool.items() if key not in ("type", "function")}
    more = {key: item for key, item in inner.items() if key not in own_fields or not item}
    return ToolSpec(
        name=str(inner["name"]),
        description=str(inner.get("description") or ""),
        parameters=dict(mapping(inner.get("parameters"))),
        extra=extra | ({"function": more} if more else {}),
    )


def write_tool(tool: Tool) -> Json:
    """Return a tool as JSON."""
    if isinstance(tool, UnknownPart):
        return dict(tool.value)
    extra = dict(tool.extra)
    described = {"description": tool.description} if tool.description else {}
    shaped = {"parameters": tool.parameters} if tool.parameters else {}
    function = {"name": tool.name, **described, **shaped, **extra.pop("function", {})}
    return {"type": "function", "function": function} | extra


def read_reply(body: Any) -> WireReply:
    """Return the reply in a body of status 200. Raises NotThisFormat if it is neither a reply nor an error."""
    fields = mapping(body)
    choice, *others = map(mapping, fields.get("choices") or ({},))
    value = choice.get("message") or fields.get("message")
    more = [call for other in others for call in mapping(other.get("message")).get("tool_calls") or ()]
    if more or choice.get("tool_calls"):  # Copilot: a choice for each call of Claude's; Swama: beside the message
        own = mapping(value).get("tool_calls") or choice.get("tool_calls") or ()
        value = {**mapping(value), "tool_calls": [*own, *more]}
    envelope = mapping(fields.get("base_resp"))  # MiniMax
    failed = fields.get("error") or choice.get("error") or (envelope if envelope.get("status_code") else None)
    error = read_error(None, {"error": failed}) if failed else None
    if not isinstance(value, Mapping) and error is None:
        raise NotThisFormat(f"no choices in it; it has {', '.join(map(str, fields)) or 'nothing'}"[:200])
    message = read_message({"role": "assistant", **mapping(value)} | {"role": "assistant"}, "the reply")
    reason = choice.get("finish_reason") or fields.get("done_reason")
    finish = _FINISH.get(str(reason).lower(), "stop")
    if any(isinstance(part, RefusalPart) for part in message.parts):
        finish = "refusal"
    if finish == "error" and error is None:
        error = WireError(codes=("server_error",), message=f"the reply broke off (finish_reason {reason})")
    own_fields = ("id", "model", "choices", "usage", "error")
    return WireReply(
        message=message,
        finish="error" if error is not None else finish,
        usage=usage_of(fields.get("usage")) or usage_of({k: v for k, v in fields.items() if k.endswith("eval_count")}),
        id=str(fields.get("id") or ""),
        model=str(fields.get("model") or ""),
        error=error,
        extra={name: item for name, item in fields.items() if name not in own_fields}
        | ({"finish_reason": reason} if isinstance(reason, str) else {}),
    )


def finish_word(reply: WireReply) -> str:
    """Return the finish_reason of a reply."""
    if reply.finish == "stop":
        return "tool_calls" if reply.message.calls else "stop"
    return {"refusal": "content_filter", "error": "error"}.get(reply.finish, "length")


def write_reply(reply: WireReply, created: int) -> Json:
    """Return the body of a reply. created: seconds since the epoch."""
    message = write_message(reply.message)
    refusal = message.get("refusal")
    return {
        "id": reply.id,
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [
            {
                "index": 0,
                "message": message
                | {
                    "content": None if refusal else message["content"] or (None if reply.message.calls else ""),
                    "refusal": refusal,
                },
                "logprobs": None,
                "finish_reason": finish_word(reply),
            }
        ],
    } | ({} if reply.usage is None else {"usage": write_usage(reply.usage)})


def write_usage(usage: TokenUsage) -> Json:
    """Return a usage object."""
    prompt, output = usage.input or 0, usage.output or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def read_stream(events: Iterable[Event]) -> WireReply:
    """Return the reply of a whole stream, as `read_reply` does; a stream that ends early is an error."""
    head: Json = {}
    message: Json = {}
    calls: list[Json] = []
    reason, usage, ended, error = None, None, False, None
    for event in events:
        chunk = event.json
        if chunk is None:
            ended = ended or event.data.strip() == "[DONE]"
            continue
        error = error or chunk.get("error")
        head = head or {"id": chunk.get("id"), "model": chunk.get("model")}
        choice = mapping(next(iter(chunk.get("choices") or ()), None))
        usage = chunk.get("usage") or choice.get("usage") or mapping(chunk.get("x_groq")).get("usage") or usage
        reason = choice.get("finish_reason") or reason
        for name, value in mapping(choice.get("delta")).items():
            if name == "tool_calls":
                for call in value or ():
                    _add_call(calls, call)
            elif name != "role":
                message[name] = _added(message.get(name), value)
    if calls:
        message["tool_calls"] = [{name: item for name, item in call.items() if name != "index"} for call in calls]
    if reason is None and error is None and not ended:
        error = {"code": "server_error", "message": "the stream ended before its end"}
    body = {**head, "choices": [{"message": message, "finish_reason": reason}], "usage": usage}
    return read_reply(body | ({"error": error} if error else {}))


def _added(field: Any, piece: Any) -> Any:
    """Return a field with its next piece: texts and lists grow, and consecutive parts of one type are joined."""
    if isinstance(field, str) and isinstance(piece, str):
        return field + piece
    if isinstance(field, dict) and isinstance(piece, dict):
        return field | {name: item if name == "type" else _added(field.get(name), item) for name, item in piece.items()}
    if isinstance(field, list) or isinstance(piece, list):
        parts = _parts_of(field)
        for part in _parts_of(piece):
            last = parts[-1] if parts else None
            joined = isinstance(last, dict) and isinstance(part, dict) and last.get("type") == part.get("type")
            parts[len(parts) - joined :] = [_added(last, part) if joined else part]
        return parts
    return field if piece is None else piece


def _parts_of(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list) else [{"type": "text", "text": content}] if content else []


def _add_call(calls: list[Json], delta: Mapping[str, Any]) -> None:
    """Add a piece to its call. A new call begins with a name that has a new id or index, because some servers give
    every call the index 0 or none, or every piece a new id or the name."""
    kind = "custom" if "custom" in delta else "function"
    index, inner = delta.get("index"), mapping(delta.get(kind))
    name = inner.get("name") or ""
    call = next((call for call in reversed(calls) if index is None or call["index"] == index), None)
    if call is None or name and (index is None or delta.get("id") and delta["id"] != call.get("id")):
        call = {"index": index, kind: {"name": ""}}
        calls.append(call)
    for field, item in delta.items():
        if field != kind and item and not call.get(field):
            call[field] = item
    if inner.get("arguments") and call[kind].get("arguments") == "{}":  # Bedrock sends an empty object first
        call[kind]["arguments"] = ""
    call[kind] = _added(call[kind], {**inner, "name": "" if name == call[kind]["name"] else name})


def write_stream(reply: WireReply, created: int, *, with_usage: bool) -> Iterator[bytes]:
    """Yield the events of a reply. with_usage: end with the usage, as `stream_options.include_usage` requests."""
    head = {"id": reply.id, "object": "chat.completion.chunk", "created": created, "model": reply.model}

    def chunk(delta: Json, reason: str | None = None) -> bytes:
        return write_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    yield chunk({"role": "assistant", "content": ""})
    index = 0
    for part in reply.message.parts:
        if isinstance(part, ThinkingPart) and part.text:
            yield chunk({_THOUGHTS[0]: part.text})
        elif isinstance(part, RefusalPart):
            yield chunk({"refusal": part.text})
        elif isinstance(part, TextPart) and part.text:
            for piece in pieces(part.text):
                yield chunk({"content": piece})
        elif isinstance(part, ToolCall):
            written = write_call(part)
            kind, field = ("custom", "input") if part.custom else ("function", "arguments")
            yield chunk({"tool_calls": [{**written, "index": index, kind: {**written[kind], field: ""}}]})
            for piece in pieces(part.arguments):
                yield chunk({"tool_calls": [{"index": index, kind: {field: piece}}]})
            index += 1
    yield chunk({}, finish_word(reply))
    if with_usage and reply.usage is not None:
        yield write_event({**head, "choices": [], "usage": write_usage(reply.usage)})
    yield DONE


def pieces(text: str, size: int = 24) -> Iterator[str]:
    """Yield a text in pieces of `size` characters, as a stream sends it."""
    for start in range(0, len(text), size):
        yield text[start : start + size]
