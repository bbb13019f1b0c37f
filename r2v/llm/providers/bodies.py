"""Request bodies: a request in a provider's wire format, with tools in the form that its model takes.

Actions are text in R2V, one JSON object per line, for teacher and student alike, so that a small policy can be
distilled from them. A model gives them as text after the prompt's format, as JSON under a schema, or as native tool
calls. With native calls it is shown its own calls, thoughts and results as it gave them, and the steps of other actors
as calls.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from r2v.data.action import parse_action
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.registry.shape import Actions, RequestShape
from r2v.llm.types import Request
from r2v.wire import anthropic, chat, responses
from r2v.wire.exchange import WireRequest
from r2v.wire.message import Message, TextPart, ToolCall, ToolResult, ToolSpec, sendable, visible

REPLY_FORMAT = (
    "You act through tools, one call in each reply. Reply with exactly one JSON object on one line "
    'and nothing else: {"tool": "<name>", "<argument>": <value>, ...}'
)
"""Instruction for actions as text."""

JSON_FORMAT = (
    "You act through tools, one call in each reply. Reply with exactly one JSON object "
    'and nothing else: {"action": {"tool": "<name>", "<argument>": <value>, ...}}'
)
"""Instruction for actions under a JSON schema, which needs one object around all actions."""
CALL_FORMAT = "You act through tools. Call exactly one tool in each reply."
"""Instruction for native tool calls, whose tools the request itself describes."""

Json = dict[str, Any]


def system_prompt(messages: Sequence[Message], tools: Sequence[ToolSpec], actions: Actions = "text") -> str:
    """Return the conversation's own system messages, then the action instruction, with the tools unless they are called
    natively; empty without either."""
    parts = [message.text for message in messages if message.role == "system"]
    if tools and actions == "tools":
        parts.append(CALL_FORMAT)
    elif tools:
        schemas = [
            json.dumps(
                {"tool": tool.name, "description": tool.description, "arguments": tool.parameters}, ensure_ascii=False
            )
            for tool in tools
        ]
        reply_format = JSON_FORMAT if actions == "json" else REPLY_FORMAT
        parts.append(f"{reply_format}\nTools:\n" + "\n".join(schemas))
    return "\n\n".join(parts)


def turns(request: Request, shape: RequestShape) -> tuple[Message, ...]:
    """Return the conversation without its system messages; unchanged if it has rules of its own. With actions as text,
    every message is text of user or assistant, and tool results are the user's."""
    dialogue = [message for message in request.messages if message.role != "system"]
    if request.own_rules:
        return tuple(dialogue)
    if request.tools and shape.actions == "tools":
        return tuple(_native(dialogue))
    plain = [
        Message(role="assistant" if message.role == "assistant" else "user", content=visible(message.text))
        for message in dialogue
    ]
    return tuple(_joined(plain)) if shape.in_turn else tuple(plain)


def has_neighbours(request: Request, shape: RequestShape) -> bool:
    """True if a request's body holds two messages of one side in a row, which some servers refuse."""
    sides = [message.role == "assistant" for message in request.messages if message.role != "system"]
    is_native = bool(request.tools) and shape.actions == "tools"
    return not is_native and any(side == following for side, following in itertools.pairwise(sides))


def _joined(messages: Sequence[Message]) -> Iterator[Message]:
    for role, group in itertools.groupby(messages, key=lambda message: message.role):
        yield Message(role=role, content="\n\n".join(message.text for message in group))


def _native(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation with native calls. The first observation, which follows no call, joins the goal's message.

    Calls made in one reply are executed one after the other, each a turn of its own (`CONTINUES`): they are written as
    one assistant message, followed by their results.
    """
    written: list[Message] = []
    waiting: list[str] = []
    opening = 0
    for number, message in enumerate(messages):
        if message.role == "assistant":
            message = _as_call(message, f"call{number:05d}")  # nine letters and digits, as Mistral asks for
            waiting += [call.id for call in message.calls]
            if message.extra.get(CONTINUES) and written:
                before = written[opening]
                written[opening] = replace(before, content=(*before.parts, *message.parts))
            else:
                opening = len(written)
                written.append(replace(message, extra={}))
        elif waiting:  # results answer the open calls in order: the APIs refuse a call without its result
            result = ToolResult(call_id=waiting.pop(0), content=visible(message.text))
            written.append(Message(role="tool", content=(result,)))
        elif written and written[-1].role == "user":
            written[-1] = replace(written[-1], content=f"{written[-1].text}\n\n{message.text}")
        else:
            written.append(Message(role="user", content=visible(message.text)))
    return written


CONTINUES = "continues"
"""Field of a turn whose call was made in the same reply as the call of the preceding turn."""


def _as_call(message: Message, call_id: str) -> Message:
    """Return an assistant turn with its action as a native call; a turn without an action stays text."""
    if message.calls:
        named = tuple(
            replace(part, id=part.id or call_id) if isinstance(part, ToolCall) else part for part in message.parts
        )
        return replace(message, content=named)
    action = parse_action(message.text)
    if not action.action_type:
        return replace(message, content=visible(message.text))
    arguments = json.dumps(action.arguments, ensure_ascii=False)
    return replace(message, content=(ToolCall(name=action.action_type, arguments=arguments, id=call_id),))


def chat_body(rate: Rate, request: Request) -> Json:
    """Return the body of a chat completion."""
    shape = rate.shape
    options: Json = {shape.limit: shape.limit_of(request.max_tokens)}
    if shape.effort is not None:
        options["reasoning_effort"] = shape.effort
    if request.tools and shape.actions == "json":
        schema = {"name": "action", "strict": True, "schema": action_schema(request.tools)}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    options |= _one_call(request, shape) | _sampling(rate, request)
    return chat.write_request(_wire(rate, request, options))


def response_body(rate: Rate, request: Request) -> Json:
    """Return the body of a call of the Responses API. Nothing is stored at the provider: each request holds the whole
    conversation."""
    shape = rate.shape
    options: Json = {"max_output_tokens": shape.limit_of(request.max_tokens), "store": False}
    if shape.effort is not None:
        options["reasoning"] = {"effort": shape.effort}
    if request.tools and shape.actions == "json":
        schema = {"type": "json_schema", "name": "action", "strict": True, "schema": action_schema(request.tools)}
        options["text"] = {"format": schema}
    if request.tools and shape.actions == "tools" and shape.thinking_tokens:
        options["include"] = ["reasoning.encrypted_content"]  # nothing is stored, so thoughts travel with it
    options |= _one_call(request, shape) | _sampling(rate, request)
    return responses.write_request(_wire(rate, request, options, strict=False))


def message_body(rate: Rate, request: Request) -> Json:
    """Return the params of a message. The system prompt, which all conversations share, is cached for an hour."""
    shape = rate.shape
    options: Json = {"max_tokens": shape.limit_of(request.max_tokens)}
    if shape.temperature:  # newer models refuse both in one request
        options |= {"top_p": request.top_p} if request.top_p < 1 else {"temperature": request.temperature}
    if shape.thinking == "budget":
        options["thinking"] = {"type": "enabled", "budget_tokens": shape.thinking_tokens}
    elif shape.thinking is not None:
        options["thinking"] = {"type": shape.thinking}
    output: Json = {} if shape.effort is None else {"effort": shape.effort}
    if request.tools and shape.actions == "json":
        output["format"] = {"type": "json_schema", "schema": action_schema(request.tools)}
    if request.tools and shape.actions == "tools" and not request.own_rules:
        choice = "any" if shape.forced_tool else "auto"
        options["tool_choice"] = {"type": choice, "disable_parallel_tool_use": True}
    options |= {"output_config": output} if output else {}
    wire = _wire(rate, request, options)
    if wire.system is not None:
        mark: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}} if shape.cache else {}
        wire = replace(wire, system=Message(role="system", content=(TextPart(text=wire.system.text, extra=mark),)))
    return anthropic.write_request(wire)


def _wire(rate: Rate, request: Request, options: Json, **function: bool) -> WireRequest:
    shape = rate.shape
    system = system_prompt(request.messages, () if request.own_rules else request.tools, shape.actions)
    native = request.tools if shape.actions == "tools" else ()
    return WireRequest(
        model=rate.model,
        messages=turns(request, shape),
        system=Message(role="system", content=sendable(system)) if system else None,
        tools=tuple(replace(tool, parameters=parameters_of(tool), extra=function) for tool in native),
        options=options,
    )


def _one_call(request: Request, shape: RequestShape) -> Json:
    if not request.tools or shape.actions != "tools" or request.own_rules:
        return {}
    return {"tool_choice": "required" if shape.forced_tool else "auto", "parallel_tool_calls": False}


def _sampling(rate: Rate, request: Request) -> Json:
    if not rate.shape.temperature:
        return {}
    return {"temperature": request.temperature} | ({"top_p": request.top_p} if request.top_p < 1 else {})


def parameters_of(tool: ToolSpec) -> dict[str, Any]:
    """Return the schema of a tool's arguments without R2V's own keywords (`x-free`), which providers refuse."""
    schema: Json = _plain(tool.parameters or {"type": "object", "properties": {}})
    return schema


def _plain(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _plain(value) for key, value in schema.items() if not str(key).startswith("x-")}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


def action_schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Return the schema of {"action": a call of one of the tools} for strict structured output: every property is
    required and no other is allowed, so an optional argument may be null instead."""
    return _object({"action": {"anyOf": [_call_schema(tool) for tool in tools]}})


def _call_schema(tool: ToolSpec) -> dict[str, Any]:
    schema = parameters_of(tool)
    required = schema.get("required", ())
    properties: dict[str, Any] = {"tool": {"type": "string", "enum": [tool.name]}}
    for name, value in schema.get("properties", {}).items():
        strict = _strict(value)
        # strict output has no optional properties; null is dropped again where the action is read
        properties[name] = strict if name in required else {"anyOf": [strict, {"type": "null"}]}
    return _object(properties)


def _strict(schema: Any) -> Any:
    """Return a schema whose objects are all closed, with every property required."""
    if not isinstance(schema, Mapping):
        return schema
    inner: dict[str, Any] = {
        key: [_strict(item) for item in value] if key == "anyOf" else value for key, value in schema.items()
    }
    if "items" in inner:
        inner["items"] = _strict(schema["items"])
    if inner.get("type") == "object":
        inner |= _object({name: _strict(value) for name, value in schema.get("properties", {}).items()})
    return inner


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
