"""Content: wire messages reduced to the parts kept by an episode, and their form in its files.

    messages = read_messages([{"role": "user", "content": "..."}, ...])     # of Chat Completions, or Claude's blocks

Texts of a message are joined, media are replaced by their type in brackets, each tool result is a message, every call
has an id. Parts of other kinds are refused by name: a policy's prompt could not express them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from r2v.data.interchange.fields import BadRecord, parsed, require
from r2v.wire import anthropic, chat
from r2v.wire.message import Message, Part, RefusalPart, TextPart, ThinkingPart, ToolCall, ToolResult, UnknownPart

T = TypeVar("T")
Placed = tuple[str, Message]
"""(location in the record, message)."""
_MEDIA = ("image", "image_url", "input_image", "document", "file", "input_file", "audio", "input_audio", "video")
_MARKED = (*_MEDIA, "video_url", "tool_reference")
_THOUGHTS = "thinking_blocks"
"""LiteLLM's field for thoughts with their providers' signatures."""


def read_messages(listed: Sequence[Any]) -> tuple[Message, ...]:
    """Return messages of Chat Completions or Anthropic's Messages. Raise BadRecord for other values."""
    return normal((f"message {n}", read_message(value, f"message {n}")) for n, value in enumerate(listed))


def read_message(value: Any, where: str) -> Message:
    """Return one message; its calls may be JSON in a string. Raise BadRecord for other values."""
    fields = require(value, dict, where)
    if calls := parsed(fields.get(chat.CALLS), f"{where}: {chat.CALLS}"):
        listed = require(calls, list, f"{where}: {chat.CALLS}")
        fields = fields | {chat.CALLS: [parsed(call, f"{where}: a tool call") for call in listed]}
    return as_read(chat.read_message, fields, where)


def as_read(reader: Callable[[Any, str], T], value: Any, where: str) -> T:
    """Return `reader(value, where)`, a reader of `r2v.wire`. Raise BadRecord if the value is not of its format or has a
    field of another type."""
    try:
        return reader(value, where)
    except (chat.NotThisFormat, TypeError) as error:
        reason = str(error)
        raise BadRecord(reason if reason.startswith(where) else f"{where}: {reason}") from None


def text_of(content: Any, where: str) -> str:
    """Return the text of a content, which is text or parts. Raise BadRecord for other values."""
    return normal([(where, read_message({"role": "user", "content": content}, where))])[0].text


def normal(messages: Iterable[Placed]) -> tuple[Message, ...]:
    """Return messages of any format as kept by episodes. Raise BadRecord for an unknown part."""
    return tuple(_with_ids(part for where, message in messages for part in _split(message, where)))


def joined(messages: Iterable[Placed]) -> Iterator[Placed]:
    """Yield the messages with consecutive ones of the assistant joined: formats of items list its parts one by one."""
    for role, group in groupby(messages, key=lambda placed: placed[1].role):
        if role != "assistant":
            yield from group
            continue
        placed = list(group)
        where, first = placed[0]
        yield where, replace(first, content=tuple(part for _, message in placed for part in message.parts))


def _split(message: Message, where: str) -> Iterator[Message]:
    """Yield a message as separate ones of text and of each tool result, in order."""
    parts = [_part(part, where) for part in message.parts]
    if message.role == "assistant":
        yield Message(role="assistant", content=_ordered(parts, message.extra, where))
        return
    words: list[str] = []
    role = "system" if message.role == "developer" else message.role
    for part in parts:
        if isinstance(part, ToolResult):
            yield from [Message(role=role, content="\n".join(words))] if words else []
            failed = part.is_error or message.extra.get("is_error") is True or bool(message.extra.get("error"))
            yield Message(role="tool", content=(replace(part, is_error=failed),))
            words = []
        elif isinstance(part, TextPart):
            words.append(part.text)
        else:
            raise BadRecord(f"{where}: {type(part).__name__} in a message of role {message.role}")
    if words or not parts:
        yield Message(role=role, content="\n".join(words))


def _part(part: Part, where: str) -> Part:
    """Return a part without the fields that R2V does not read."""
    if isinstance(part, UnknownPart):
        kind = part.value.get("type")
        part = as_read(anthropic.read_block, part.value, where)
        if isinstance(part, UnknownPart):
            if kind not in _MARKED:
                raise BadRecord(f"{where}: unknown part {kind!r:.40}")
            return TextPart(text=f"[{kind}]")
    match part:
        case ThinkingPart():
            signed = part.opaque or part.extra.get("value", {}).get("signature") or None
            redacted = {"type": part.extra["type"]} if part.extra.get("type") == "redacted_thinking" else {}
            return ThinkingPart(text=part.text, opaque=signed, extra=redacted)
        case ToolCall(name=""):
            raise BadRecord(f"{where}: a tool call without a name")
        case ToolCall():
            return replace(part, extra={})
        case ToolResult():
            texts = (part.content,) if isinstance(part.content, str) else (_part(p, where) for p in part.content)
            words = "\n".join(text.text if isinstance(text, TextPart) else str(text) for text in texts)
            return ToolResult(call_id=part.call_id, content=words, is_error=part.is_error)
    return replace(part, extra={})


def _ordered(parts: Sequence[Part], extra: dict[str, Any], where: str) -> tuple[Part, ...]:
    """Return an assistant's parts in order: thoughts, one text, calls, refusals."""
    for name in (chat.CALLS, chat.OLDEST_CALL):
        if extra.get(name):
            raise BadRecord(f"{where}: {name} is {type(extra[name]).__name__}; calls are asked for")
    if any(isinstance(part, ToolResult) for part in parts):
        raise BadRecord(f"{where}: a tool result in a message of role assistant")
    thoughts = [part for part in parts if isinstance(part, ThinkingPart)]
    if isinstance(blocks := extra.get(_THOUGHTS), list) and blocks:
        thoughts = [block for block in map(_block, blocks) if isinstance(block, ThinkingPart)]
    words = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    return (
        *(thought for thought in thoughts if thought.text or thought.opaque),
        *([TextPart(text=words)] if words else []),
        *(part for part in parts if isinstance(part, ToolCall)),
        *(part for part in parts if isinstance(part, RefusalPart)),
    )


def _block(value: Any) -> Part:
    return _part(as_read(anthropic.read_block, value, _THOUGHTS), _THOUGHTS)


def _with_ids(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages with ids for all calls; a result without an id gets that of the first unanswered call."""
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            parts: list[Part] = []
            waiting = []
            for part in message.parts:
                if isinstance(part, ToolCall):
                    part = replace(part, id=part.id or f"call_{index}_{len(waiting)}")
                    waiting.append(part.id)
                parts.append(part)
            message = replace(message, content=tuple(parts))
        elif isinstance(result := message.parts[0] if message.parts else None, ToolResult):
            call_id = result.call_id or next(iter(waiting), "")
            waiting = [other for other in waiting if other != call_id]
            message = replace(message, content=(replace(result, call_id=call_id),))
        yield message


def write_message(message: Message) -> dict[str, Any]:
    """Return a message as one of Chat Completions, from which `read_messages` returns the same."""
    record = chat.write_message(message)
    if message.role == "tool":
        failed = any(isinstance(part, ToolResult) and part.is_error for part in message.parts)
        return record | ({"is_error": True} if failed else {})
    thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
    if len(thoughts) > 1 or any(thought.opaque for thought in thoughts):
        record[_THOUGHTS] = [anthropic.write_block(thought) for thought in thoughts]
    if message.thought:
        record["reasoning_content"] = message.thought
    return record | {"content": record["content"] or (None if message.calls else "")}
